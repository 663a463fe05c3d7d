"""A gang of two says hello: `python flows/examples/hello_gang.py` runs it here, with one member."""

from prefect import flow

from dsec_blocks import current_gang, gang, run


def greet(name: str) -> str:
    return f"hello {name} from rank {run.rank} of {run.world_size}"


@gang(nodes=2, devices_per_node=1, priority=10, grace="10s")
@flow(log_prints=True)
def hello_gang(name: str = "world") -> list[str]:
    greetings = current_gang().run(greet, name, per="device")
    print(*greetings, sep="\n")
    return greetings


if __name__ == "__main__":
    hello_gang()
