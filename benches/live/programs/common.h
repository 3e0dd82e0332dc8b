/* What the C programs of the suite share: the clock, and work by the clock. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A fixed amount of arithmetic, about `ns` nanoseconds at 3 GHz (a dependent multiplication takes 3 cycles): work,
 * not a deadline, so that a preempted thread still has it to do. */
static inline void work(long ns)
{
	unsigned long product = 3;
	for (long i = 0; i < ns; i++)
		__asm__ volatile("imul %0, %0" : "+r"(product) : : "cc");
}

static inline int usage(const char *text)
{
	fprintf(stderr, "usage: %s\n", text);
	return 2;
}
