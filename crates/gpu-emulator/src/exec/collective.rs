//! Instructions in which the lanes of a warp exchange values.

use super::atomic::combine32;
use super::lanes_of;
use super::warp::Warp;
use crate::code::{Match, Redux, Shuffle, ShuffleKind, Vote, VoteKind};
use crate::lanes::{LANES, Predicate, Slot};

/// The value that a lane receives from a lane that does not take part; it cannot pass for a result.
const GARBAGE: u32 = 0xffff_dead;

impl Warp {
    /// Writes `values` to the lanes of `mask`.
    pub fn set_words(&mut self, d: Slot, mask: u32, values: &[u32; LANES]) {
        let out = self.registers.word_mut(d);
        for l in lanes_of(mask) {
            out[l] = values[l];
        }
    }

    pub fn shuffle(&mut self, s: &Shuffle, mask: u32) {
        let a = *self.registers.word(s.a);
        let (b, c) = (*self.registers.word(s.b), *self.registers.word(s.c));
        let (mut out, mut in_range) = ([0; LANES], 0);
        for lane in 0..LANES as u32 {
            let (b, c) = (b[lane as usize] & 31, c[lane as usize]);
            let (clamp, segment) = (c & 31, c >> 8 & 31);
            let segment_start = lane & segment;
            let last = segment_start | clamp & !segment;
            let (source, is_inside) = match s.kind {
                // `clamp` is 0 here, so `last` is the segment's first lane.
                ShuffleKind::Up => (lane.wrapping_sub(b), lane as i32 - b as i32 >= last as i32),
                ShuffleKind::Down => (lane + b, lane + b <= last),
                ShuffleKind::Butterfly => (lane ^ b, lane ^ b <= last),
                ShuffleKind::Index => (
                    segment_start | b & !segment,
                    (segment_start | b & !segment) <= last,
                ),
            };
            let source = if is_inside { source } else { lane };
            in_range |= (is_inside as u32) << lane;
            let takes_part = mask >> source & 1 != 0;
            out[lane as usize] = if takes_part {
                a[source as usize]
            } else {
                GARBAGE
            };
        }
        self.set_words(s.d, mask, &out);
        self.registers.set_predicate(s.in_range, in_range, mask);
    }

    pub fn vote(&mut self, v: &Vote, mask: u32) {
        let source = self.registers.predicates[v.source as usize];
        let holds = if v.negated { !source } else { source } & mask;
        let answer = match v.kind {
            VoteKind::All => holds == mask,
            VoteKind::Any => holds != 0,
            VoteKind::Uniform => holds == mask || holds == 0,
            VoteKind::Ballot => return self.set_words(v.d, mask, &[holds; LANES]),
        };
        self.registers
            .set_predicate(v.d, if answer { !0 } else { 0 }, mask);
    }

    pub fn matches(&mut self, m: &Match, mask: u32) {
        let values: [u64; LANES] = match m.wide {
            true => *self.registers.wide(m.a),
            false => self.registers.word(m.a).map(u64::from),
        };
        let equals = |l: usize| {
            lanes_of(mask)
                .filter(|&j| values[j] == values[l])
                .fold(0, |set, j| set | 1 << j)
        };
        let mut out: [u32; LANES] = std::array::from_fn(equals);
        let mut equal = 0;
        if m.all {
            for l in lanes_of(mask) {
                let is_unanimous = out[l] == mask;
                equal |= (is_unanimous as u32) << l;
                out[l] = if is_unanimous { mask } else { 0 };
            }
        }
        self.set_words(m.d, mask, &out);
        self.registers.set_predicate(m.equal, equal, mask);
    }

    pub fn redux(&mut self, r: &Redux, mask: u32) {
        let values = self.registers.word(r.a);
        let sum = lanes_of(mask)
            .map(|l| values[l])
            .reduce(|x, y| combine32(r.op, r.ty, x, y, 0))
            .unwrap_or(0);
        self.set_words(r.d, mask, &[sum; LANES]);
    }

    pub fn elect(&mut self, d: Slot, elected: Predicate, mask: u32) {
        let leader = mask.trailing_zeros();
        self.set_words(d, mask, &[leader; LANES]);
        self.registers.set_predicate(elected, 1 << leader, mask);
    }
}
