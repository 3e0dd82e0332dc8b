/* pairs PAIRS WORK_NS BURST PAUSE_US SECONDS: PAIRS pairs of threads, each pair by itself; the two of a pair work in
 * turn, WORK_NS each time, and wake each other through futexes. After BURST turns each a pair waits PAUSE_US for the
 * outside, in which its vCPU is free for half of the other pair: without pauses a Linux scheduler keeps as many pairs
 * as there are vCPUs together by itself. One vCPU carries a pair without loss, and not two.
 * Prints the hand-overs per second of all pairs. */
#include "common.h"
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_PAIRS 1024

struct seat {
	_Alignas(128) _Atomic int has_turn;
	struct seat *other;
	int rests;
	long passes;
};

static struct seat seats[MAX_PAIRS][2];
static long work_ns, burst;
static struct timespec pause_time;
static uint64_t end_ns;

static void await_turn(struct seat *seat)
{
	while (!atomic_load(&seat->has_turn))
		syscall(SYS_futex, &seat->has_turn, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
	atomic_store(&seat->has_turn, 0);
}

static void give_turn(struct seat *seat)
{
	atomic_store(&seat->has_turn, 1);
	syscall(SYS_futex, &seat->has_turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Whoever sees that time is up gives the turn once more, so that the other sees it too. */
static void *take_turns(void *argument)
{
	struct seat *seat = argument;
	int ended = 0;
	while (!ended) {
		await_turn(seat);
		work(work_ns);
		seat->passes++;
		if (seat->rests && seat->passes % burst == 0)
			clock_nanosleep(CLOCK_MONOTONIC, 0, &pause_time, NULL);
		ended = now_ns() >= end_ns;
		give_turn(seat->other);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	long pairs = argc == 6 ? atol(argv[1]) : 0;
	burst = argc == 6 ? atol(argv[3]) : 0;
	if (pairs < 1 || pairs > MAX_PAIRS || burst < 1)
		return usage("pairs PAIRS WORK_NS BURST PAUSE_US SECONDS, 1 to 1024 pairs, bursts of 1 turn or more");
	static pthread_t threads[MAX_PAIRS][2];
	work_ns = atol(argv[2]);
	pause_time = (struct timespec){ .tv_nsec = atol(argv[4]) * 1000 };
	uint64_t start = now_ns();
	end_ns = start + (uint64_t)(atof(argv[5]) * 1e9);
	for (long i = 0; i < 2 * pairs; i++) {
		seats[i / 2][i % 2].other = &seats[i / 2][1 - i % 2];
		seats[i / 2][i % 2].has_turn = i % 2 == 0;
		seats[i / 2][i % 2].rests = i % 2 == 0 && pause_time.tv_nsec > 0;
	}
	for (long i = 0; i < 2 * pairs; i++)
		pthread_create(&threads[i / 2][i % 2], NULL, take_turns, &seats[i / 2][i % 2]);
	long passes = 0;
	for (long i = 0; i < 2 * pairs; i++) {
		pthread_join(threads[i / 2][i % 2], NULL);
		passes += seats[i / 2][i % 2].passes;
	}
	printf("passes/s: %.1f\n", passes / ((now_ns() - start) / 1e9));
	return 0;
}
