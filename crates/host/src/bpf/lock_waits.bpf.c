// SPDX-License-Identifier: GPL-2.0-only
// How long the kernel spins for locks, by powers of two of TSC cycles. A spinning task stays on its CPU, but an interrupt
// may spin for another lock meanwhile: waits are kept on a small stack for each CPU.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

// include/trace/events/lock.h
#define LCB_F_SPIN (1U << 0)
#define LCB_F_READ (1U << 1)
#define LCB_F_WRITE (1U << 2)
#define LCB_F_MUTEX (1U << 5)

#define DEPTH 8
#define KINDS 3
#define POWERS 40

enum kind { SPINLOCK, RWLOCK, MUTEX };

struct waiting {
	__u64 lock;
	__u64 since_ns;
	__u32 task;
	__u32 kind;
};

// Read by `Sums` in ple/bpf.rs from `waits` on.
struct cpu {
	__u64 waits[KINDS][POWERS];
	__u64 lost;
	__u64 depth;
	struct waiting stack[DEPTH];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

// Set before the program is loaded.
const volatile __u64 tsc_khz SEC(".rodata.settings") = 1;

static __always_inline struct cpu *this_cpu(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&cpus, &zero);
}

// The wait for a lock ends, and with it whatever began after it and was not seen to end.
static __always_inline int pop(struct cpu *cpu, __u64 lock, struct waiting *found)
{
	__u32 task = (__u32)bpf_get_current_pid_tgid();

#pragma unroll
	for (int i = DEPTH - 1; i >= 0; i--) {
		if (i < cpu->depth && cpu->stack[i].lock == lock && cpu->stack[i].task == task) {
			*found = cpu->stack[i];
			cpu->depth = i;
			return 1;
		}
	}
	return 0;
}

// The smallest n with value <= 2^n.
static __always_inline __u32 power_of(__u64 value)
{
	__u32 power = 0;

	if (value <= 1)
		return 0;
	value--;
#pragma unroll
	for (int shift = 32; shift; shift >>= 1) {
		if (value >> shift) {
			value >>= shift;
			power += shift;
		}
	}
	return power + 1;
}

// Arguments: void *lock, unsigned int flags.
SEC("raw_tp/contention_begin")
int on_begin(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 lock = ctx->args[0];
	__u32 flags = ctx->args[1];
	struct cpu *cpu = this_cpu();
	struct waiting ended;
	__u64 at;

	if (!cpu)
		return 0;
	if (!(flags & LCB_F_SPIN)) {
		// A mutex whose waiter has given up spinning and goes to sleep: no end of the spinning is told.
		if (flags & LCB_F_MUTEX)
			pop(cpu, lock, &ended);
		return 0;
	}
	at = cpu->depth;
	if (at >= DEPTH) {
		cpu->lost += DEPTH;
		at = 0;
	}
	cpu->stack[at].lock = lock;
	cpu->stack[at].task = (__u32)bpf_get_current_pid_tgid();
	cpu->stack[at].kind = flags & LCB_F_MUTEX ? MUTEX : flags & (LCB_F_READ | LCB_F_WRITE) ? RWLOCK : SPINLOCK;
	cpu->depth = at + 1;
	cpu->stack[at].since_ns = bpf_ktime_get_ns();
	return 0;
}

// Arguments: void *lock, int ret.
SEC("raw_tp/contention_end")
int on_end(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 now_ns = bpf_ktime_get_ns();
	struct cpu *cpu = this_cpu();
	struct waiting wait;
	__u32 power;

	if (!cpu || !pop(cpu, ctx->args[0], &wait))
		return 0;
	power = power_of((now_ns - wait.since_ns) * tsc_khz / 1000000);
	if (power >= POWERS)
		power = POWERS - 1;
	if (wait.kind < KINDS)
		cpu->waits[wait.kind][power]++;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
