"""python_queue SECONDS: two threads pass integers through queue.Queue(1); prints the items per second."""

import queue
import sys
import threading
import time

channel: queue.Queue = queue.Queue(1)


def consume() -> None:
    while channel.get() is not None:
        pass


consumer = threading.Thread(target=consume)
consumer.start()
start = time.monotonic()
end = start + float(sys.argv[1])
items = 0
while time.monotonic() < end:
    channel.put(items)
    items += 1
seconds = time.monotonic() - start
channel.put(None)
consumer.join()
print(f"items/s: {items / seconds:.1f}")
