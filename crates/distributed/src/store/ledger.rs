//! The operations that ranks have begun, by which faults are found and named.

use super::{Report, SILENCE, Vote};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// The state of a group.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// The fault that a rank has met, or that reports show.
    pub fault: Option<String>,
    /// By rank in the group, the number of operations that it has begun.
    pub begun: Vec<u64>,
    /// The ranks in the group that have ended.
    pub gone: Vec<usize>,
}

/// The reports of all ranks.
#[derive(Default)]
pub(super) struct Ledger {
    groups: BTreeMap<String, Group>,
    /// The ranks of the world that have ended.
    pub gone: BTreeSet<usize>,
    /// The time of each rank's last request.
    seen: BTreeMap<usize, Instant>,
}

#[derive(Default)]
struct Group {
    begun: Vec<u64>,
    /// The descriptions of operations that not all have begun, and who began them first.
    calls: BTreeMap<u64, (String, usize)>,
    /// The votes in front of operations that not all have begun, by number and round.
    polls: BTreeMap<(u64, u32), Poll>,
    fault: Option<String>,
}

#[derive(Default)]
struct Poll {
    /// By rank in the group.
    proposals: BTreeMap<usize, String>,
    decision: Option<bool>,
}

impl Ledger {
    /// Notes that a rank is alive.
    pub fn see(&mut self, rank: usize) {
        self.seen.insert(rank, Instant::now());
    }

    pub fn report(&mut self, report: Report) -> Status {
        let Report { rank, members, .. } = report;
        let group = self.groups.entry(report.group).or_default();
        group.begun.resize(members.len().max(rank + 1), 0);
        for (number, call) in (report.from..).zip(report.calls) {
            group.begun[rank] = number + 1;
            let (first_call, who) = group.calls.entry(number).or_insert((call.clone(), rank));
            if *first_call != call {
                let text = format!(
                    "the ranks call different operations: rank {who} calls {first_call}, rank {rank} calls {call}"
                );
                group.fault.get_or_insert(text);
            }
        }
        if let Some(fault) = report.fault {
            group.fault.get_or_insert(fault);
        }
        let done = group.begun.iter().copied().min().unwrap_or_default();
        group.calls = group.calls.split_off(&done);
        group.polls = group.polls.split_off(&(done, 0));
        let is_silent = |r: &usize| self.seen.get(r).is_some_and(|t| t.elapsed() > SILENCE);
        let gone = members.iter().enumerate();
        let gone = gone.filter(|(_, r)| self.gone.contains(r) || is_silent(r));
        Status {
            fault: group.fault.clone(),
            begun: group.begun.clone(),
            gone: gone.map(|(i, _)| i).collect(),
        }
    }

    pub fn vote(&mut self, vote: &Vote) {
        let group = self.groups.entry(vote.group.clone()).or_default();
        let poll = group.polls.entry((vote.number, vote.round)).or_default();
        poll.proposals.insert(vote.rank, vote.proposal.clone());
    }

    /// The decision of a vote: once for all, and against the proposal if it is `last` to wait; `None` if it is open.
    pub fn decide(&mut self, vote: &Vote, last: bool) -> Option<bool> {
        let group = self.groups.entry(vote.group.clone()).or_default();
        let Some(poll) = group.polls.get_mut(&(vote.number, vote.round)) else {
            return Some(false);
        };
        let Poll {
            proposals,
            decision,
        } = poll;
        if decision.is_none() {
            let differs = proposals.values().any(|p| *p != vote.proposal);
            // Those that don't vote.
            let abstains = vote.members.iter().enumerate().any(|(rank, member)| {
                let has_begun = group.begun.get(rank).is_some_and(|n| *n > vote.number);
                !proposals.contains_key(&rank) && (has_begun || self.gone.contains(member))
            });
            if differs || abstains || last {
                *decision = Some(false);
            } else if proposals.len() == vote.members.len() {
                *decision = Some(true);
            }
        }
        *decision
    }
}
