//! Counts of inter-processor interrupts from `/proc/interrupts` (proc_interrupts(5)). Reading it takes some 60 us, so it
//! is read at the beginning and the end of a watch only.

use muster_model::CpuSet;

/// Interrupts received by some CPUs since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interrupts {
    /// `RES`: rescheduling interrupts, wake-ups of a CPU that is awake.
    pub reschedule: u64,
    /// `CAL`: function calls; a wake-up of an idle CPU arrives as one too (kernel/smp.c, the wake list).
    pub call: u64,
    /// `TLB`: shootdowns, a part of `CAL`.
    pub tlb: u64,
    /// `LOC`: timer interrupts.
    pub timer: u64,
}

impl Interrupts {
    /// Sums the text of `/proc/interrupts` over the CPUs `allowed`; `None` when it has no head line of CPUs. Rows that
    /// this architecture does not have count 0.
    pub fn parse(text: &str, allowed: &CpuSet) -> Option<Self> {
        let mut lines = text.lines();
        let cpus: Vec<usize> = lines
            .next()?
            .split_ascii_whitespace()
            .map(|word| word.strip_prefix("CPU")?.parse().ok())
            .collect::<Option<_>>()?;
        let mut sums = Self::default();
        for line in lines {
            let Some((name, counts)) = line.split_once(':') else { continue };
            let sum = match name.trim() {
                "RES" => &mut sums.reschedule,
                "CAL" => &mut sums.call,
                "TLB" => &mut sums.tlb,
                "LOC" => &mut sums.timer,
                _ => continue,
            };
            let counts = counts.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok());
            *sum = cpus.iter().zip(counts).filter(|(cpu, _)| allowed.contains(**cpu)).map(|(_, count)| count).sum();
        }
        (!cpus.is_empty()).then_some(sums)
    }

    /// What arrived between `before` and `self`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            reschedule: self.reschedule.saturating_sub(before.reschedule),
            call: self.call.saturating_sub(before.call),
            tlb: self.tlb.saturating_sub(before.tlb),
            timer: self.timer.saturating_sub(before.timer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "           CPU0       CPU2       \n 24:          1          0  IO-APIC   5-edge      ACPI:Ged
NMI:          0          0   Non-maskable interrupts\nLOC:      29603      35663   Local timer interrupts
RES:       6377       5000   Rescheduling interrupts\nCAL:      34933      26449   Function call interrupts
TLB:       5742       5840   TLB shootdowns\nERR:          0\n";

    #[test]
    fn sums_the_allowed_cpus_by_number() {
        let all = Interrupts::parse(TEXT, &CpuSet::first(3)).unwrap();
        assert_eq!(all, Interrupts { reschedule: 11_377, call: 61_382, tlb: 11_582, timer: 65_266 });
        let last = Interrupts::parse(TEXT, &CpuSet::single(2)).unwrap();
        assert_eq!((last.reschedule, last.tlb), (5_000, 5_840));
        assert_eq!(all.since(&last).call, 34_933);
    }

    #[test]
    fn other_architectures_and_broken_texts() {
        assert_eq!(Interrupts::parse("CPU0\nIPI0: 5 x\n", &CpuSet::first(1)), Some(Interrupts::default()));
        for broken in ["", "\n", "what is this\n1: 2\n"] {
            assert_eq!(Interrupts::parse(broken, &CpuSet::first(1)), None, "{broken:?}");
        }
    }
}
