"""`python -m dsec_deployments.cli`, for machines where the `dsec` script is not on the path."""

from dsec_deployments.cli import main

main()
