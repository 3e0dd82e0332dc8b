// SPDX-License-Identifier: GPL-2.0-only
// KVM's PAUSE exits and the changes of its PLE windows, in the order in which each vCPU's thread made them, and how many
// exits there were in all. Where the fields of the two tracepoints lie is read from tracefs and set before loading.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define VMX_EXIT_PAUSE 40
#define SVM_EXIT_PAUSE 0x77
#define ISA_VMX 1

struct settings {
	__u32 exit_reason_at;
	__u32 isa_at;
	__u32 new_at;
	__u32 old_at;
};

const volatile struct settings settings SEC(".rodata.settings") = {};

// Read by `event` in ple/bpf.rs. A window of zero: a PAUSE exit.
struct event {
	__u32 thread;
	__u32 old_window;
	__u32 new_window;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} events SEC(".maps");

struct counts {
	__u64 exits;
	__u64 lost;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

static __always_inline struct counts *my_counts(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&counts, &zero);
}

static __always_inline void say(__u32 old_window, __u32 new_window)
{
	struct event event = {
		.thread = (__u32)bpf_get_current_pid_tgid(),
		.old_window = old_window,
		.new_window = new_window,
	};
	struct counts *sums = my_counts();

	if (bpf_ringbuf_output(&events, &event, sizeof(event), 0) && sums)
		sums->lost++;
}

static __always_inline __u32 field(void *ctx, __u32 at)
{
	__u32 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), ctx + at);
	return value;
}

SEC("tp/kvm/kvm_exit")
int on_exit(void *ctx)
{
	__u32 reason = field(ctx, settings.exit_reason_at);
	struct counts *sums = my_counts();

	if (sums)
		sums->exits++;
	if (reason == (field(ctx, settings.isa_at) == ISA_VMX ? VMX_EXIT_PAUSE : SVM_EXIT_PAUSE))
		say(0, 0);
	return 0;
}

SEC("tp/kvm/kvm_ple_window_update")
int on_window(void *ctx)
{
	say(field(ctx, settings.old_at), field(ctx, settings.new_at));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
