/* pipeline QUEUE WORK_NS SECONDS: a producer and a consumer thread share a bounded queue of QUEUE items (mutex and
 * two condition variables); each spends WORK_NS of CPU on an item. Prints the items passed per second. */
#include "common.h"
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t not_full = PTHREAD_COND_INITIALIZER, not_empty = PTHREAD_COND_INITIALIZER;
static long capacity, length, work_ns;
static int ended;

static void *produce(void *unused)
{
	(void)unused;
	for (;;) {
		work(work_ns);
		pthread_mutex_lock(&lock);
		while (length == capacity && !ended)
			pthread_cond_wait(&not_full, &lock);
		if (ended)
			break;
		length++;
		pthread_cond_signal(&not_empty);
		pthread_mutex_unlock(&lock);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return usage("pipeline QUEUE WORK_NS SECONDS");
	capacity = atol(argv[1]);
	work_ns = atol(argv[2]);
	pthread_t producer;
	long items = 0;
	uint64_t start = now_ns(), end = start + (uint64_t)(atof(argv[3]) * 1e9);

	pthread_create(&producer, NULL, produce, NULL);
	while (now_ns() < end) {
		pthread_mutex_lock(&lock);
		while (length == 0)
			pthread_cond_wait(&not_empty, &lock);
		length--;
		pthread_cond_signal(&not_full);
		pthread_mutex_unlock(&lock);
		work(work_ns);
		items++;
	}
	pthread_mutex_lock(&lock);
	ended = 1;
	pthread_cond_signal(&not_full);
	pthread_mutex_unlock(&lock);
	pthread_join(producer, NULL);
	printf("items/s: %.1f\n", items / ((now_ns() - start) / 1e9));
	return 0;
}
