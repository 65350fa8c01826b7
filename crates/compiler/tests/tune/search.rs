//! Trials of candidates.

use crate::made_up::{Does, MadeUpClock, effort, made_up, record};
use kiln_compiler::tune::{Limits, Outcome, Record, Subject, Trial, search};
use std::sync::Arc;

fn tried(list: &[(&str, u64, Does)], limits: &Limits) -> Record {
    let subject: Arc<dyn Subject> = made_up(list);
    let trials = search(&subject, limits, &effort(), &MadeUpClock::default());
    assert_eq!(trials.len(), list.len());
    Record::new("key".into(), trials)
}

fn best<'a>(record: &'a Record, limits: &Limits) -> Option<&'a str> {
    let names: Vec<&str> = record.trials.iter().map(|t| &t.name[..]).collect();
    record.best(&names, limits).map(|t| &t.name[..])
}

#[test]
fn candidates_that_are_wrong_fail_panic_or_hang_never_win_and_are_reported() {
    let none = Limits::default();
    let record = tried(
        &[
            ("default", 0, Does::Takes(&[100])),
            ("wrong", 0, Does::Wrong),
            ("fails", 0, Does::Fails),
            ("panics", 0, Does::Panics),
            ("panics later", 0, Does::PanicsLater),
            ("hangs", 0, Does::Hangs),
            ("hangs later", 0, Does::HangsLater),
            ("good", 0, Does::Takes(&[50])),
        ],
        &none,
    );
    assert_eq!(best(&record, &none), Some("good"));
    let outcome = |name| &record.trial(name).unwrap().outcome;
    assert_eq!(
        *outcome("wrong"),
        Outcome::Wrong("element 3 is 1, not 2".into())
    );
    assert_eq!(
        *outcome("fails"),
        Outcome::Failed("no such instruction".into())
    );
    assert_eq!(
        *outcome("panics"),
        Outcome::Failed("it panicked: in the check".into())
    );
    assert_eq!(
        *outcome("panics later"),
        Outcome::Failed("it panicked: in a run".into())
    );
    assert_eq!(*outcome("hangs"), Outcome::Hung(77));
    assert_eq!(*outcome("hangs later"), Outcome::Hung(77));
}

#[test]
fn what_interrupts_a_few_runs_does_not_decide() {
    let none = Limits::default();
    let list = [
        ("slow", 0, Does::Takes(&[100, 101, 102])),
        ("disturbed", 0, Does::Takes(&[80, 9000, 81, 7000, 80])),
    ];
    let record = tried(&list, &none);
    assert_eq!(best(&record, &none), Some("disturbed"));
    let Outcome::Timed(times) = &record.trials[1].outcome else {
        panic!("{record:?}");
    };
    assert!(times.contains(&9000), "all times are kept: {times:?}");
}

#[test]
fn ties_go_to_less_workspace_then_to_the_defaults_bits_then_to_the_first() {
    let none = Limits::default();
    let takes = Does::Takes(&[1000]);
    let list = [
        ("a", 8, takes.clone()),
        ("b", 4, Does::Rounds(&[1005])),
        ("c", 4, Does::Takes(&[1008])),
        ("d", 4, Does::Takes(&[1002])),
        ("e", 0, Does::Takes(&[1011])), // no tie any more
    ];
    assert_eq!(best(&tried(&list, &none), &none), Some("c"));
    assert_eq!(best(&tried(&list[..2], &none), &none), Some("b"));
    assert_eq!(
        best(
            &tried(&[("x", 0, takes.clone()), ("y", 0, takes)], &none),
            &none
        ),
        Some("x")
    );
}

#[test]
fn limits_rule_candidates_out() {
    let small = Limits {
        workspace: Some(100),
        same_bits: false,
    };
    let list = [
        ("default", 0, Does::Takes(&[100])),
        ("large", 101, Does::Takes(&[10])),
        ("rounds", 100, Does::Rounds(&[50])),
    ];
    let record = tried(&list, &small);
    assert_eq!(best(&record, &small), Some("rounds"));
    assert_eq!(
        record.trial("large").unwrap().outcome,
        Outcome::TooLarge(100)
    );
    let same = Limits {
        same_bits: true,
        ..small
    };
    assert_eq!(best(&record, &same), Some("default"));
    // The record says nothing about candidates beyond the limit, and covers all that are within it.
    let needed: Vec<(&str, u64)> = list.iter().map(|(name, w, _)| (*name, *w)).collect();
    assert!(record.covers(&needed, &small) && record.covers(&needed, &same));
    assert!(!record.covers(&needed, &Limits::default()));
    assert!(!record.covers(&[("new", 0)], &small));
}

#[test]
fn variants_are_tried_of_the_fastest_alone() {
    let list = [
        ("default", 0, Does::Takes(&[100])),
        ("default, larger", 0, Does::Takes(&[10])),
        ("other", 0, Does::Takes(&[50])),
        ("other, larger", 0, Does::Takes(&[40])),
        ("broken", 0, Does::Fails),
        ("broken, larger", 0, Does::Takes(&[10])),
    ];
    let subject: Arc<dyn Subject> = made_up(&list).vary(&[1, 3, 5]);
    let trials = search(
        &subject,
        &Limits::default(),
        &effort(),
        &MadeUpClock::default(),
    );
    let record = Record::new("key".into(), trials);
    assert_eq!(best(&record, &Limits::default()), Some("other, larger"));
    let outcomes = [1, 5].map(|i| record.trials[i].outcome.clone());
    let [slower, broken] = outcomes;
    assert_eq!(slower, Outcome::Slower(2.0));
    assert_eq!(broken, record.trials[4].outcome);
    // Candidates that were not tried are covered.
    let needed: Vec<(&str, u64)> = list.iter().map(|(name, w, _)| (*name, *w)).collect();
    assert!(record.covers(&needed, &Limits::default()));
    let line = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
}

#[test]
fn the_cost_model_rules_out_what_has_no_chance_but_never_the_default() {
    let takes = |name| (name, 0, Does::Takes(&[100]));
    let subject = made_up(&[takes("default"), takes("hopeless"), takes("fair")]);
    let subject: Arc<dyn Subject> = subject.predict(&[1000.0, 100.0, 7.0]);
    let trials = search(
        &subject,
        &Limits::default(),
        &effort(),
        &MadeUpClock::default(),
    );
    let timed = |t: &Trial| matches!(t.outcome, Outcome::Timed(_));
    assert!(timed(&trials[0]) && timed(&trials[2]));
    assert!(matches!(trials[1].outcome, Outcome::Pruned(r) if r > 14.0));
    let predicted = [Some(1000.0 / 7.0), Some(100.0 / 7.0), Some(1.0)];
    assert_eq!([0, 1, 2].map(|i| trials[i].predicted), predicted);
    // Through the store too; lines without predictions can be read.
    let record = Record::new("key".into(), trials);
    let line = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
    let text = record.trials[0].to_string();
    assert_eq!(text, "default 100.0ns (predicted 142.86x the best)");
    let older = line.replace("\"predicted\":1.0,", "");
    let older: Record = serde_json::from_str(&older).unwrap();
    assert_eq!(older.trials[2].predicted, None);
    assert_eq!(older.trials[2].to_string(), "fair 100.0ns");
}

#[test]
fn times_are_interleaved_and_candidates_far_behind_are_not_run_on() {
    let none = Limits::default();
    let list = [
        ("default", 0, Does::Takes(&[100])),
        ("near", 0, Does::Takes(&[120])),
        ("far", 0, Does::Takes(&[200])),
    ];
    let record = tried(&list, &none);
    let runs = |i: usize| match &record.trials[i].outcome {
        Outcome::Timed(times) => times.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!([runs(0), runs(1), runs(2)], [9, 9, 5]);
}

#[test]
fn of_an_empty_record_nothing_is_best() {
    let empty = record("key", 0, &[]);
    assert_eq!(best(&empty, &Limits::default()), None);
    assert!(empty.covers(&[], &Limits::default()));
    assert_eq!(empty.trial("x"), None);
}
