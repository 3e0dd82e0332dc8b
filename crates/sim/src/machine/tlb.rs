//! Translations that a core holds: how many of the pages that code goes through, and what refilling takes.
//!
//! Code of a kind (the program's, the guest kernel's) goes through a *footprint* of pages again and again. A flush drops
//! what a core holds of one; when such code runs there again it walks the page tables for each page once. Instructions
//! and data have TLBs of their own. One footprint may push out what is held of the other where both do not fit.

use crate::engine::Ps;

/// Whose pages they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// The program's.
    User,
    /// The kernel's.
    Kernel,
}

/// So many 4 KiB pages (or pages of 2 MiB, where these are mapped).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Of instructions.
    pub code: u32,
    /// Of data.
    pub data: u32,
}

/// What a core holds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tlb {
    held: [Footprint; 2],
}

/// How many entries a core has, in the largest level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entries {
    /// For instructions.
    pub code: u32,
    /// For data.
    pub data: u32,
}

/// Code comes to a page that it has not been at for a while once in this time, at most: assumed.
const NEW_PAGE: Ps = 25_000;

impl Tlb {
    /// Code of `space` runs for `time` and goes through `footprint`; the misses.
    #[inline]
    pub fn run(&mut self, space: Space, footprint: Footprint, entries: Entries, time: Ps) -> Footprint {
        let held = self.held[space as usize];
        let missing = Footprint {
            code: footprint.code.saturating_sub(held.code),
            data: footprint.data.saturating_sub(held.data),
        };
        if missing == Footprint::default() {
            return missing;
        }
        // A short piece of code does not come to all of them.
        let most = (time / NEW_PAGE + 1).min(Ps::from(u32::MAX)) as u32;
        let misses = Footprint { code: missing.code.min(most), data: missing.data.min(most) };
        let now = Footprint { code: held.code + misses.code, data: held.data + misses.data };
        self.held[space as usize] = now;
        let other = &mut self.held[1 - space as usize];
        other.code = other.code.min(entries.code.saturating_sub(now.code));
        other.data = other.data.min(entries.data.saturating_sub(now.data));
        misses
    }

    /// All translations of `space` are gone.
    #[inline]
    pub fn flush(&mut self, space: Space) {
        self.held[space as usize] = Footprint::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: Entries = Entries { code: 64, data: 64 };
    const LONG: Ps = 1_000_000_000;

    #[test]
    fn what_is_held_is_not_walked_for_and_what_was_flushed_is() {
        let mut tlb = Tlb::default();
        let (user, kernel) = (Footprint { code: 20, data: 40 }, Footprint { code: 30, data: 20 });
        assert_eq!(tlb.run(Space::User, user, ENTRIES, LONG), user);
        assert_eq!(tlb.run(Space::Kernel, kernel, ENTRIES, LONG), kernel);
        assert_eq!(tlb.run(Space::User, user, ENTRIES, LONG), Footprint::default());
        tlb.flush(Space::Kernel);
        assert_eq!(tlb.run(Space::User, user, ENTRIES, LONG), Footprint::default());
        assert_eq!(tlb.run(Space::Kernel, kernel, ENTRIES, LONG), kernel);
    }

    #[test]
    fn footprints_that_do_not_fit_together_push_each_other_out() {
        let mut tlb = Tlb::default();
        let (user, kernel) = (Footprint { code: 60, data: 0 }, Footprint { code: 10, data: 0 });
        tlb.run(Space::User, user, ENTRIES, LONG);
        tlb.run(Space::Kernel, kernel, ENTRIES, LONG);
        assert_eq!(tlb.run(Space::User, user, ENTRIES, LONG).code, 6);
    }

    #[test]
    fn a_short_piece_of_code_comes_to_few_pages() {
        let mut tlb = Tlb::default();
        let user = Footprint { code: 20, data: 40 };
        let first = tlb.run(Space::User, user, ENTRIES, 4 * NEW_PAGE);
        assert_eq!(first, Footprint { code: 5, data: 5 });
        let rest = tlb.run(Space::User, user, ENTRIES, LONG);
        assert_eq!(rest, Footprint { code: 15, data: 35 });
    }
}
