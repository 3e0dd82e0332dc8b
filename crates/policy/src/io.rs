//! Decisions of I/O virtualization: how often a queue of a network card interrupts, which queue a connection's packets go
//! to, and which back end serves a front end.

/// Packets that a receiver has room for between two interrupts: 120832 bytes of a socket's buffer (`net.core.rmem_default`)
/// by 1472 of a packet, fewer than a card's 1024 descriptors.
const BUFFERED_PACKETS: u64 = 82;
/// One in five of them stays free, in case that packets come faster than they did.
const RESERVE: (u64, u64) = (12, 10);
/// TCP loses throughput where interrupts are rarer.
const LEAST_PER_S: u64 = 2_000;

/// Nanoseconds from one interrupt of a queue to the next where so many packets come in a second: adaptive interrupt coalescing
/// (Dong et al., "High Performance Network Virtualization with SR-IOV", HPCA 2010, section 5.3: packets by buffers with a
/// reserve, and not below a least frequency).
pub fn adaptive_period_ns(packets_per_s: u64) -> u64 {
    let per_s = packets_per_s.saturating_mul(RESERVE.0) / RESERVE.1 / BUFFERED_PACKETS;
    1_000_000_000 / per_s.max(LEAST_PER_S)
}

/// The queue of so many to which a connection's packets go (receive-side scaling): connections of even numbers spread evenly,
/// which a hash does on average.
///
/// # Panics
/// When there is no queue.
pub fn queue_of(connection: u32, queues: u32) -> u32 {
    connection % queues
}

/// The back end that gets the next front end: the one with the fewest, the first of several (Linux netback, `netif_be_int`'s
/// group with the least `netfront_count`).
///
/// # Panics
/// When there is none.
pub fn back_end_for(front_ends: &[u32]) -> usize {
    (0..front_ends.len()).min_by_key(|&back_end| front_ends[back_end]).expect("there is a back end")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_busy_queue_interrupts_before_its_receivers_buffers_are_full() {
        assert_eq!(adaptive_period_ns(0), 500_000);
        assert_eq!(adaptive_period_ns(13_700), 500_000);
        assert!((81_000..=83_500).contains(&adaptive_period_ns(818_400)));
    }

    proptest! {
        #[test]
        fn packets_between_interrupts_fit_the_buffers(pps in 0u64..100_000_000) {
            let between = pps as u128 * u128::from(adaptive_period_ns(pps)) / 1_000_000_000;
            prop_assert!(between <= u128::from(BUFFERED_PACKETS.max(pps / LEAST_PER_S)));
        }

        #[test]
        fn front_ends_spread_evenly(back_ends in 1usize..16, front_ends in 1u32..100) {
            let mut counts = vec![0; back_ends];
            (0..front_ends).for_each(|_| {
                let to = back_end_for(&counts);
                counts[to] += 1;
            });
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
    }
}
