"""python_gil SECONDS: two threads compete for the interpreter lock with pure computation; prints loops per second."""

import sys
import threading
import time

counts = [0, 0]


def compute(index: int, end: float) -> None:
    while time.monotonic() < end:
        sum(range(2000))
        counts[index] += 1


start = time.monotonic()
threads = [threading.Thread(target=compute, args=(index, start + float(sys.argv[1]))) for index in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(f"loops/s: {sum(counts) / (time.monotonic() - start):.1f}")
