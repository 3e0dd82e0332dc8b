"""python_pool SECONDS: a multiprocessing.Pool of two maps tiny tasks, one at a time; prints tasks per second."""

import multiprocessing
import sys
import time


def task(number: int) -> int:
    return number * number


if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        pool.map(task, range(100))
        start = time.monotonic()
        end = start + float(sys.argv[1])
        tasks = 0
        while time.monotonic() < end:
            pool.map(task, range(200), chunksize=1)
            tasks += 200
        print(f"tasks/s: {tasks / (time.monotonic() - start):.1f}")
