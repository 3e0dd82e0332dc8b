// SPDX-License-Identifier: GPL-2.0-only
// Who of the watched processes wakes whom, how long a woken thread waits until it runs, and how long it had slept.
// Raw tracepoints only; everything is summed up in the kernel. The few kernel fields needed are declared here and
// relocated when the program is loaded (CO-RE), so that no vmlinux.h is needed to build it.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

struct task_struct {
	int pid;
	int tgid;
} __attribute__((preserve_access_index));

#define MAX_THREADS 16384
#define MAX_PAIRS 16384
#define SLEEP_BUCKETS 32

struct pair {
	__u32 waker;
	__u32 wakee;
};

struct waking {
	__u64 at_ns;
	__u32 cpu;
	__u32 unused;
};

struct latency {
	__u64 count;
	__u64 sum_ns;
};

// Read by `add` in bpf.rs.
struct totals {
	__u64 events;
	__u64 wakes;
	struct latency same_cpu;
	struct latency idle_cpu;
	struct latency busy_cpu;
	__u64 slept_log2_us[SLEEP_BUCKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_THREADS);
	__type(key, __u32);
	__type(value, __u8);
} watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PAIRS);
	__type(key, struct pair);
	__type(value, __u64);
} pairs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_THREADS);
	__type(key, __u32);
	__type(value, struct waking);
} woken SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_THREADS);
	__type(key, __u32);
	__type(value, __u64);
} blocked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct totals);
} totals SEC(".maps");

static __always_inline struct totals *my_totals(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&totals, &zero);
}

static __always_inline int is_watched(struct task_struct *task)
{
	__u32 tgid = BPF_CORE_READ(task, tgid);

	return bpf_map_lookup_elem(&watched, &tgid) != 0;
}

static __always_inline void count_pair(__u32 waker, __u32 wakee)
{
	struct pair pair = { .waker = waker, .wakee = wakee };
	__u64 *count = bpf_map_lookup_elem(&pairs, &pair);
	__u64 one = 1;

	if (count)
		__sync_fetch_and_add(count, 1);
	else
		bpf_map_update_elem(&pairs, &pair, &one, BPF_NOEXIST);
}

static __always_inline void count_sleep(struct totals *sums, __u64 slept_ns)
{
	__u64 us = slept_ns / 1000;
	__u32 bucket = 0;

#pragma unroll
	for (int i = 0; i < SLEEP_BUCKETS - 1; i++) {
		us >>= 1;
		if (us)
			bucket++;
	}
	if (bucket < SLEEP_BUCKETS)
		sums->slept_log2_us[bucket]++;
}

SEC("raw_tp/sched_waking")
int on_waking(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *wakee = (struct task_struct *)ctx->args[0];
	struct totals *sums = my_totals();
	struct waking waking = { .at_ns = bpf_ktime_get_ns(), .cpu = bpf_get_smp_processor_id() };
	__u64 *since_ns;
	__u32 pid;

	if (!sums)
		return 0;
	sums->events++;
	if (!is_watched(wakee))
		return 0;
	pid = BPF_CORE_READ(wakee, pid);
	sums->wakes++;
	count_pair((__u32)bpf_get_current_pid_tgid(), pid);
	bpf_map_update_elem(&woken, &pid, &waking, BPF_ANY);
	since_ns = bpf_map_lookup_elem(&blocked, &pid);
	if (since_ns) {
		count_sleep(sums, waking.at_ns - *since_ns);
		bpf_map_delete_elem(&blocked, &pid);
	}
	return 0;
}

static __always_inline void count_start(struct totals *sums, struct task_struct *prev, struct task_struct *next)
{
	__u32 pid = BPF_CORE_READ(next, pid);
	struct waking *waking = bpf_map_lookup_elem(&woken, &pid);
	struct latency *latency = &sums->busy_cpu;

	if (!waking)
		return;
	if (waking->cpu == bpf_get_smp_processor_id())
		latency = &sums->same_cpu;
	else if (BPF_CORE_READ(prev, pid) == 0)
		latency = &sums->idle_cpu;
	latency->count++;
	latency->sum_ns += bpf_ktime_get_ns() - waking->at_ns;
	bpf_map_delete_elem(&woken, &pid);
}

// Arguments: bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int prev_state.
SEC("raw_tp/sched_switch")
int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *prev = (struct task_struct *)ctx->args[1];
	struct task_struct *next = (struct task_struct *)ctx->args[2];
	struct totals *sums = my_totals();

	if (!sums)
		return 0;
	sums->events++;
	if (is_watched(next))
		count_start(sums, prev, next);
	if (!ctx->args[0] && (__u32)ctx->args[3] != 0 && is_watched(prev)) {
		__u32 pid = BPF_CORE_READ(prev, pid);
		__u64 now_ns = bpf_ktime_get_ns();

		bpf_map_update_elem(&blocked, &pid, &now_ns, BPF_ANY);
	}
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
