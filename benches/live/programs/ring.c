/* ring THREADS SECONDS: THREADS threads pass a token around; each waits on a futex of its own. Two make a ping-pong.
 * Prints the hand-overs per second. */
#include "common.h"
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_THREADS 4096

static struct { _Alignas(64) _Atomic int has_token; } seats[MAX_THREADS];
static long threads;
static uint64_t end_ns;
static long passes;
static _Atomic int ended;

static void take_token(long seat)
{
	while (!atomic_load(&seats[seat].has_token))
		syscall(SYS_futex, &seats[seat].has_token, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
	atomic_store(&seats[seat].has_token, 0);
}

static void give_token(long seat)
{
	atomic_store(&seats[seat].has_token, 1);
	syscall(SYS_futex, &seats[seat].has_token, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* The holder of the token is alone with `passes`. Once time is up everybody hands on a token, held or not, so that
 * nobody waits for a thread that has left. */
static void *sit(void *argument)
{
	long seat = (long)(intptr_t)argument;
	while (!atomic_load(&ended)) {
		take_token(seat);
		passes++;
		if (now_ns() >= end_ns)
			atomic_store(&ended, 1);
		give_token((seat + 1) % threads);
	}
	give_token((seat + 1) % threads);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 3 || (threads = atol(argv[1])) < 2 || threads > MAX_THREADS)
		return usage("ring THREADS SECONDS, 2 to 4096 threads");
	pthread_t others[MAX_THREADS];
	uint64_t start = now_ns();
	end_ns = start + (uint64_t)(atof(argv[2]) * 1e9);
	atomic_store(&seats[0].has_token, 1);
	for (long seat = 1; seat < threads; seat++)
		pthread_create(&others[seat], NULL, sit, (void *)(intptr_t)seat);
	sit((void *)0);
	for (long seat = 1; seat < threads; seat++)
		pthread_join(others[seat], NULL);
	printf("passes/s: %.1f\n", passes / ((now_ns() - start) / 1e9));
	return 0;
}
