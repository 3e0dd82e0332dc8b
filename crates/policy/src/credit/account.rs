//! Accounting: how the credits of a period are shared out, and what follows from it for priorities (`csched_acct`).

use super::{CREDITS_PER_PERIOD, Domain, Priority, Scheduler, Share, Touch, VcpuId};
use muster_model::CpuSet;

/// What an accounting did. Credits are conserved: those of all vCPUs together grow by
/// `handed_out - forfeited + forgiven`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accounting<'a> {
    /// What there was to hand out: each pCPU's yield, and what the last period left owing.
    pub available: i64,
    /// What was handed out: `available`, rounded up for each domain and vCPU, less what limited domains left over.
    pub handed_out: i64,
    /// How many active domains got less than their fair share would be, as they can run no longer or are capped.
    pub limited: u32,
    /// Taken from vCPUs that had saved up more than a period's credits, and earn no more until a tick finds them running.
    pub forfeited: i64,
    /// Given to vCPUs that owed more than a period's credits.
    pub forgiven: i64,
    /// The shared objects it used, in order.
    pub touches: &'a [Touch],
    /// The pCPUs that are to call [`Scheduler::schedule`].
    pub kicks: &'a CpuSet,
}

/// What is still to be shared out, while domain after domain gets its part.
struct Pot {
    /// Of all active vCPUs.
    weight: i64,
    /// Of the domains that are still to be served.
    weight_left: i64,
    /// What all would get together at the present rate.
    credits: i64,
    /// What all active vCPUs owe together.
    owed: i64,
}

/// What each active vCPU of a domain gets.
struct Portion {
    credits: i64,
    /// How far it may be in debt before it is parked.
    cap: i64,
    /// The domain got less than its fair share would be.
    limited: bool,
}

impl Pot {
    /// Takes out a domain's part: its fair share, but no more than its active vCPUs can use up or its cap allows. What it
    /// leaves raises the rate for those that follow.
    fn take(&mut self, share: Share, vcpus: i64) -> Portion {
        let weight = i64::from(share.weight) * vcpus;
        self.weight_left -= weight;
        let mut peak = vcpus * CREDITS_PER_PERIOD + div_up(self.owed * weight, self.weight);
        let mut cap = 0;
        if share.cap != 0 {
            cap = div_up(i64::from(share.cap) * CREDITS_PER_PERIOD, 100);
            peak = peak.min(cap);
            cap = div_up(cap, vcpus);
        }
        let fair = div_up(self.credits * weight, self.weight);
        let limited = fair >= peak;
        if limited && self.weight_left != 0 {
            self.credits += div_up((fair - peak) * self.weight, self.weight_left);
        }
        Portion { credits: div_up(fair.min(peak), vcpus), cap, limited }
    }
}

pub(super) fn account(scheduler: &mut Scheduler, by: usize) -> Accounting<'_> {
    scheduler.touches.push(Touch::LockPrivate);
    let owed = (-scheduler.balance).max(0);
    let available = CREDITS_PER_PERIOD * scheduler.pcpus.len() as i64 + owed;
    let mut done = Accounting {
        available,
        handed_out: 0,
        limited: 0,
        forfeited: 0,
        forgiven: 0,
        touches: &[],
        kicks: &CpuSet::EMPTY,
    };
    scheduler.balance = 0;
    if scheduler.weight == 0 {
        done.available = 0;
    } else {
        let weight = scheduler.weight;
        serve_domains(scheduler, by, Pot { weight, weight_left: weight, credits: available, owed }, &mut done);
        scheduler.epoch += 1;
    }
    scheduler.touches.push(Touch::UnlockPrivate);
    Accounting { touches: &scheduler.touches, kicks: &scheduler.kicks, ..done }
}

fn serve_domains(scheduler: &mut Scheduler, by: usize, mut pot: Pot, done: &mut Accounting<'_>) {
    let mut somebody_wants_more = false;
    let mut at = 0;
    while let Some(&domain) = scheduler.active_domains.get(at) {
        let Domain { share, ref active, .. } = scheduler.domains[domain as usize];
        let portion = pot.take(share, active.len() as i64);
        done.limited += u32::from(portion.limited);
        if portion.limited && somebody_wants_more {
            // Those that leave something over come first next time, for others to get it.
            scheduler.active_domains[..=at].rotate_right(1);
        }
        somebody_wants_more |= !portion.limited;
        let mut index = 0;
        while let Some(&vcpu) = scheduler.domains[domain as usize].active.get(index) {
            let stays = give(scheduler, vcpu, &portion, share.cap != 0, by, done);
            index += usize::from(stays);
        }
        at += usize::from(!scheduler.domains[domain as usize].active.is_empty());
    }
}

/// Gives a vCPU its credits, and sees what follows; `false` when it earns no more.
fn give(
    scheduler: &mut Scheduler,
    id: VcpuId,
    portion: &Portion,
    is_capped: bool,
    by: usize,
    done: &mut Accounting<'_>,
) -> bool {
    scheduler.touches.push(Touch::ChangeCredits(id));
    let vcpu = &mut scheduler.vcpus[id as usize];
    vcpu.credit += portion.credits;
    done.handed_out += portion.credits;
    let mut stays = true;
    if vcpu.credit < 0 {
        vcpu.priority = Priority::Over;
        let parks = is_capped && vcpu.credit < -portion.cap && !vcpu.parked;
        let bounded = vcpu.credit.max(-CREDITS_PER_PERIOD);
        done.forgiven += bounded - vcpu.credit;
        vcpu.credit = bounded;
        if parks {
            vcpu.parked = true;
            scheduler.take_off(id);
        }
    } else {
        vcpu.priority = Priority::Under;
        if std::mem::take(&mut vcpu.parked) {
            scheduler.release(id, by);
        }
        let vcpu = &mut scheduler.vcpus[id as usize];
        if vcpu.credit > CREDITS_PER_PERIOD {
            // Half stays, so that it starts a little ahead when it earns again.
            let half = vcpu.credit / 2;
            done.forfeited += vcpu.credit - half;
            vcpu.credit = half;
            stays = false;
        }
    }
    scheduler.balance += scheduler.vcpus[id as usize].credit;
    if !stays {
        scheduler.stop_earning(id);
    }
    stays
}

impl Scheduler {
    /// The vCPU was found running: it earns credits from now on.
    pub(super) fn start_earning(&mut self, vcpu: VcpuId) {
        let domain = self.vcpus[vcpu as usize].domain;
        self.vcpus[vcpu as usize].active = true;
        let Self { domains, active_domains, .. } = self;
        let owner = &mut domains[domain as usize];
        if owner.active.is_empty() {
            active_domains.insert(0, domain);
        }
        owner.active.insert(0, vcpu);
        self.weight += i64::from(owner.share.weight);
    }

    fn stop_earning(&mut self, vcpu: VcpuId) {
        let domain = self.vcpus[vcpu as usize].domain;
        self.vcpus[vcpu as usize].active = false;
        let owner = &mut self.domains[domain as usize];
        owner.active.retain(|&other| other != vcpu);
        self.weight -= i64::from(owner.share.weight);
        if owner.active.is_empty() {
            self.active_domains.retain(|&other| other != domain);
        }
    }

    /// A vCPU that was parked may run again, without a boost.
    fn release(&mut self, vcpu: VcpuId, by: usize) {
        let pcpu = self.vcpus[vcpu as usize].pcpu;
        self.touches.push(Touch::Lock(pcpu));
        let v = &self.vcpus[vcpu as usize];
        if v.is_runnable() && !v.queued && !self.runs(vcpu) {
            self.enqueue_and_tell(vcpu, by);
        }
        self.touches.push(Touch::Unlock(pcpu));
    }
}

fn div_up(dividend: i64, divisor: i64) -> i64 {
    (dividend + divisor - 1) / divisor
}
