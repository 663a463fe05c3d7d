"""DSec itself on a Kubernetes cluster: what `dsec deploy kubernetes` does.

`chart` renders the manifests with helm, `kinds` finds where each kind lives, `preflight` looks for what they need,
`applying` compares and applies them and waits until they are healthy, `release` finds what is there of a release and
takes away what is not wanted any more. The chart is in `deployments/kubernetes/dsec`.
"""
