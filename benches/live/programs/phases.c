/* phases PERIOD_MS SECONDS: two threads alternate, every PERIOD_MS, between a futex ping-pong and independent
 * computation. Prints the throughput of both kinds of phase over the time spent in each. */
#include "common.h"
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORK_NS 1000
enum { RALLY_END = -1 };

static uint64_t start_ns, period_ns, end_ns;
static _Atomic int turn;
static long rallies, loops[2];
static double rally_s, compute_s[2];
static pthread_barrier_t phase_begins;

static void wait_for_turn(int value)
{
	int seen;
	while ((seen = atomic_load(&turn)) != value && seen != RALLY_END)
		syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void pass_turn(int value)
{
	atomic_store(&turn, value);
	syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Thread 0 serves until `until`, then ends the rally for both. */
static void rally(int self, uint64_t until)
{
	if (self == 1) {
		for (;;) {
			wait_for_turn(1);
			if (atomic_load(&turn) == RALLY_END)
				return;
			pass_turn(0);
		}
	}
	uint64_t begin = now_ns();
	while (now_ns() < until) {
		pass_turn(1);
		wait_for_turn(0);
		rallies++;
	}
	pass_turn(RALLY_END);
	rally_s += (now_ns() - begin) / 1e9;
}

static void compute(int self, uint64_t until)
{
	uint64_t begin = now_ns();
	while (now_ns() < until) {
		work(WORK_NS);
		loops[self]++;
	}
	compute_s[self] += (now_ns() - begin) / 1e9;
}

static void *play(void *argument)
{
	int self = (int)(intptr_t)argument;
	for (uint64_t phase = 0; start_ns + phase * period_ns < end_ns; phase++) {
		uint64_t until = start_ns + (phase + 1) * period_ns;
		if (self == 0)
			atomic_store(&turn, 0);
		pthread_barrier_wait(&phase_begins);
		if (phase % 2)
			compute(self, until);
		else
			rally(self, until);
		pthread_barrier_wait(&phase_begins);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return usage("phases PERIOD_MS SECONDS");
	pthread_t other;
	period_ns = (uint64_t)(atof(argv[1]) * 1e6);
	start_ns = now_ns();
	end_ns = start_ns + (uint64_t)(atof(argv[2]) * 1e9);
	pthread_barrier_init(&phase_begins, NULL, 2);
	pthread_create(&other, NULL, play, (void *)1);
	play((void *)0);
	pthread_join(other, NULL);
	printf("pingpong/s: %.1f\ncompute/s: %.1f\n", rallies / rally_s,
	       loops[0] / compute_s[0] + loops[1] / compute_s[1]);
	return 0;
}
