"""What other processes do to a store; each function runs in a process of its own."""

import resource
import sys
import threading
from pathlib import Path

from agentic_retriever.errors import StoreError
from agentic_retriever.stores import edge
from agentic_retriever.stores.edge import QdrantEdgeVectorStore

sys.path.insert(0, str(Path(__file__).parents[1]))
from store_tools import ask, make_node

BATCH = 20


def batch(start):
    return [make_node(number, source=f"d{number // BATCH}", n=number) for number in range(start, start + BATCH)]


def write_until_killed(path, start, sender):
    store = QdrantEdgeVectorStore(path)
    while True:
        store.add(batch(start))
        start += BATCH
        sender.send(start)


def build_a_graph(path, step, connection):
    """Write and remove, and stand still, at a step of the building."""
    store = QdrantEdgeVectorStore(path)
    reached = {
        "copied": (edge.SharedShard, "_await_builder", lambda *_: True),
        "building": (edge.subprocess.Popen, "poll", lambda process: "-I" in process.args),
        "loaded": (edge, "sync", lambda place: place.name == "shard-b"),
        "named": (edge, "sync", lambda place: place.name == "default"),
    }
    owner, name, is_there = reached[step]
    real = getattr(owner, name)

    def stand_still(*args):
        if is_there(*args):
            store.add([make_node(number) for number in range(400, 400 + BATCH)])
            store.delete_nodes(["node-00003"])
            connection.send("there")
            threading.Event().wait()
        return real(*args)

    setattr(owner, name, stand_still)
    store.build_graph(from_nodes=1)


def hold(path, connection):
    store = QdrantEdgeVectorStore(path)
    store.add(batch(0))
    connection.send("open")
    connection.recv()
    store.add(batch(BATCH))
    connection.send(store.count())
    store.close()


def race(path, number, barrier, done, connection):
    barrier.wait(30)
    try:
        store = QdrantEdgeVectorStore(path, dimension=8)
        store.add(batch(number * BATCH))
    except StoreError as err:
        connection.send((number, type(err).__name__, None))
        return
    connection.send((number, "ok", store.count()))
    done.wait(30)
    store.close()


def fill_a_disk(path, connection):
    store = QdrantEdgeVectorStore(path, dimension=8)
    store.add(batch(0))
    store.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
    acknowledged, said = BATCH, ""
    for start in range(BATCH, 4_000, BATCH):
        nodes = batch(start)
        for node in nodes:
            node.text = "long " * 2_000
        try:
            store.add(nodes)
        except StoreError as err:
            said = f"{type(err).__name__}: {err}"
            break
        acknowledged = start + BATCH
    try:
        readable = len(store.query(ask(3, BATCH, filters=None)).ids)
    except StoreError as err:
        readable = str(err)
    connection.send((said, acknowledged, readable))
