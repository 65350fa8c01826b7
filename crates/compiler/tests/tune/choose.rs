//! Choices: modes, limits, and look-ups in the store.

use crate::made_up::{Does, MadeUp, MadeUpClock, folder, made_up};
use kiln_compiler::tune::{Choice, Chooser, Mode, Settings, Store, Subject, Why};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn settings(mode: Mode, store: &Path) -> Settings {
    Settings {
        mode,
        store: Some(store.into()),
        ..Settings::default()
    }
}

/// The choice of one compilation.
fn choose(settings: &Settings, key: &str, subject: &Arc<MadeUp>) -> Arc<Choice> {
    let clock = MadeUpClock::default();
    let mut chooser = Chooser::new(settings, &clock, false);
    chooser.choose(key.into(), &subject.list(), || subject.clone())
}

fn three() -> Arc<MadeUp> {
    made_up(&[
        ("default", 0, Does::Takes(&[100])),
        ("rounds", 10, Does::Rounds(&[50])),
        ("same", 1000, Does::Takes(&[70])),
    ])
}

fn runs(subject: &Arc<MadeUp>) -> usize {
    subject.runs.load(Ordering::Relaxed)
}

#[test]
fn a_key_is_measured_once() {
    let store = folder("once").join("tune.jsonl");
    let on = settings(Mode::On, &store);
    let subject = three();
    let choice = choose(&on, "k", &subject);
    assert_eq!((&*choice.chosen, &choice.why), ("rounds", &Why::Measured));
    assert_eq!(runs(&subject), 3);
    let again = choose(&on, "k", &subject);
    assert_eq!((&*again.chosen, &again.why), ("rounds", &Why::Store));
    assert_eq!(again.trials, choice.trials);
    assert_eq!(runs(&subject), 3, "nothing was measured again");
    // Another process reads the same.
    let read = Store::new(&store).get("k").unwrap();
    assert_eq!(read.trials, choice.trials);
    // So do limits that are set later.
    let small = Settings {
        workspace: Some(5),
        ..on.clone()
    };
    assert_eq!(choose(&small, "k", &subject).chosen, "default");
    let deterministic = settings(Mode::Deterministic, &store);
    assert_eq!(choose(&deterministic, "k", &subject).chosen, "same");
    assert_eq!(runs(&subject), 3);
}

#[test]
fn what_a_limit_kept_from_being_tried_is_tried_without_it() {
    let store = folder("limit").join("tune.jsonl");
    let on = settings(Mode::On, &store);
    let small = Settings {
        workspace: Some(100),
        ..on.clone()
    };
    let subject = made_up(&[
        ("default", 0, Does::Takes(&[100])),
        ("large", 1000, Does::Takes(&[10])),
    ]);
    assert_eq!(choose(&small, "k", &subject).chosen, "default");
    assert_eq!(runs(&subject), 1);
    assert_eq!(choose(&on, "k", &subject).chosen, "large");
    // Trying it without the limit does not lose the earlier records.
    assert_eq!(choose(&small, "k", &subject).chosen, "default");
    assert_eq!(choose(&on, "k", &subject).why, Why::Store);
}

#[test]
fn what_failed_or_hung_is_tried_again_when_the_store_is_told_so() {
    let store = folder("retry").join("tune.jsonl");
    let on = settings(Mode::On, &store);
    let list = |does: [Does; 3]| {
        let [wrong, fails, hangs] = does;
        made_up(&[
            ("default", 0, Does::Takes(&[100])),
            ("wrong", 0, wrong),
            ("fails", 0, fails),
            ("hangs", 0, hangs),
        ])
    };
    let first = list([Does::Wrong, Does::Fails, Does::Hangs]);
    assert_eq!(choose(&on, "k", &first).chosen, "default");
    let later = list([Does::Takes(&[30]), Does::Takes(&[20]), Does::Takes(&[10])]);
    assert_eq!(choose(&on, "k", &later).why, Why::Store);
    let opened = Store::new(&store);
    assert_eq!(opened.retry(|r| r.key != "k").unwrap(), 0);
    assert_eq!(opened.retry(|_| true).unwrap(), 2);
    assert_eq!(
        opened.retry(|_| true).unwrap(),
        0,
        "they are not failures any more"
    );
    // Until it is measured, the known candidates are used.
    let frozen = settings(Mode::Frozen, &store);
    assert_eq!(choose(&frozen, "k", &later).chosen, "default");
    let clock = MadeUpClock::default();
    let known = |settings| Chooser::new(settings, &clock, false).known("k");
    assert!(known(&on).is_none(), "not all is known");
    let again = choose(&on, "k", &later);
    assert_eq!((&*again.chosen, &again.why), ("hangs", &Why::Measured));
    assert!(known(&on).is_some());
    assert_eq!(choose(&on, "k", &later).why, Why::Store);
}

#[test]
fn modes() {
    let store = folder("modes").join("tune.jsonl");
    let subject = three();
    let off = choose(&settings(Mode::Off, &store), "k", &subject);
    assert_eq!((&*off.chosen, &off.why), ("default", &Why::Off));
    let frozen = settings(Mode::Frozen, &store);
    let missing = choose(&frozen, "k", &subject);
    assert_eq!((&*missing.chosen, &missing.why), ("default", &Why::Missing));
    assert_eq!(runs(&subject), 0);
    assert!(!store.exists());
    choose(&settings(Mode::On, &store), "k", &subject);
    let known = choose(&frozen, "k", &subject);
    assert_eq!((&*known.chosen, &known.why), ("rounds", &Why::Store));
    let off = choose(&settings(Mode::Off, &store), "k", &subject);
    assert_eq!(off.chosen, "default");
    // A frozen store that knows some of the candidates: the best of those.
    let more = made_up(&[
        ("default", 0, Does::Takes(&[100])),
        ("new", 0, Does::Takes(&[1])),
        ("same", 0, Does::Takes(&[70])),
    ]);
    assert_eq!(choose(&frozen, "k", &more).chosen, "same");
    assert_eq!(runs(&more), 0);
    assert_eq!(
        choose(&settings(Mode::On, &store), "k", &more).chosen,
        "new"
    );
}

#[test]
fn the_report_names_what_is_missing_and_what_is_wrong() {
    let store = folder("report").join("tune.jsonl");
    let clock = MadeUpClock::default();
    let frozen = settings(Mode::Frozen, &store);
    let mut chooser = Chooser::new(&frozen, &clock, false);
    let subject = three();
    for key in ["b", "a", "b"] {
        chooser.choose(key.into(), &subject.list(), || subject.clone());
    }
    let report = chooser.finish();
    assert_eq!(report.missing().collect::<Vec<_>>(), ["a", "b"]);
    insta::assert_snapshot!(report, @r"
    tuning: frozen, 2 kinds of kernels with a choice
      not in the store: a
      not in the store: b
    ");
    let on = settings(Mode::On, &store);
    let mut chooser = Chooser::new(&on, &clock, false);
    let subject = made_up(&[
        ("default", 0, Does::Takes(&[100])),
        ("wrong", 0, Does::Wrong),
        ("hangs", 0, Does::Hangs),
    ]);
    let choice = chooser.choose("k".into(), &subject.list(), || subject.clone());
    insta::assert_snapshot!(choice, @"default (measured now: default 100.0ns, wrong is wrong: element 3 is 1, not 2, hangs did not answer for 20000 ms)");
    let report = chooser.finish();
    let faults: Vec<&str> = report.faults().map(|(_, t)| &t.name[..]).collect();
    assert_eq!(faults, ["wrong", "hangs"]);
    assert_eq!(report.measured().collect::<Vec<_>>(), ["k"]);
}

#[test]
fn ties_are_named() {
    let store = folder("ties").join("tune.jsonl");
    let on = settings(Mode::On, &store);
    let tie = made_up(&[
        ("default", 50, Does::Takes(&[1001])),
        ("small", 10, Does::Takes(&[1005])),
        ("fast", 90, Does::Takes(&[1000])),
        ("slow", 0, Does::Takes(&[1100])),
    ]);
    let choice = choose(&on, "tie", &tie);
    assert_eq!(choice.chosen, "small");
    assert_eq!(choice.ties, ["default", "fast"]);
    let text = choice.to_string();
    assert!(
        text.contains("small (measured now, a tie with default, fast: "),
        "{text}"
    );
    // A candidate that may not be chosen is not a tie.
    let tight = Settings {
        workspace: Some(60),
        ..on
    };
    assert_eq!(choose(&tight, "tie", &tie).ties, ["default"]);
    let clear = choose(&tight, "clear", &three());
    assert!(clear.ties.is_empty() && !clear.to_string().contains("tie"));
}

#[test]
fn where_nothing_fits_or_is_right_the_default_is_used_and_said() {
    let store = folder("nothing").join("tune.jsonl");
    let tight = Settings {
        workspace: Some(0),
        ..settings(Mode::On, &store)
    };
    let large = made_up(&[
        ("default", 10, Does::Takes(&[100])),
        ("other", 20, Does::Takes(&[50])),
    ]);
    let choice = choose(&tight, "large", &large);
    assert_eq!(
        (&*choice.chosen, &choice.why),
        ("default", &Why::NothingFits)
    );
    let on = settings(Mode::On, &store);
    let broken = made_up(&[("default", 0, Does::Fails), ("other", 0, Does::Wrong)]);
    let choice = choose(&on, "broken", &broken);
    assert_eq!(
        (&*choice.chosen, &choice.why),
        ("default", &Why::NothingRight)
    );
    assert_eq!(choice.faults().count(), 2);
    assert_eq!(choose(&on, "broken", &broken).why, Why::NothingRight);
    assert_eq!(
        runs(&broken),
        2,
        "what is broken is not tried again and again"
    );
}

#[test]
fn the_time_of_a_compilation_is_limited_and_nothing_is_timed_on_an_emulated_device() {
    let store = folder("budget").join("tune.jsonl");
    let tight = Settings {
        budget: Duration::from_nanos(1),
        ..settings(Mode::On, &store)
    };
    let (clock, subject) = (MadeUpClock::default(), three());
    let mut chooser = Chooser::new(&tight, &clock, false);
    let why = ["a", "b"].map(|key| {
        let make = || -> Arc<dyn Subject> { subject.clone() };
        chooser
            .choose(key.into(), &subject.list(), make)
            .why
            .clone()
    });
    assert_eq!(why, [Why::Measured, Why::OutOfTime]);
    let on = settings(Mode::On, &store);
    let mut chooser = Chooser::new(&on, &clock, true);
    let make = || -> Arc<dyn Subject> { panic!("nothing is run") };
    let choice = chooser.choose("b".into(), &subject.list(), make);
    assert_eq!((&*choice.chosen, &choice.why), ("default", &Why::Emulated));
    // The measurements of a real device are used all the same.
    let choice = chooser.choose("a".into(), &subject.list(), || subject.clone());
    assert_eq!((&*choice.chosen, &choice.why), ("rounds", &Why::Store));
}

#[test]
fn threads_measure_a_key_once() {
    let store = folder("threads").join("tune.jsonl");
    let on = settings(Mode::On, &store);
    let subject = three();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(choose(&on, "k", &subject).chosen, "rounds"));
        }
    });
    assert_eq!(runs(&subject), 3);
}

/// Not a test of its own: the child process of the next test.
#[test]
fn child() {
    let Some(store) = std::env::var_os("KILN_TEST_CHOOSE") else {
        return;
    };
    let on = settings(Mode::On, Path::new(&store));
    for key in ["a", "b", "c"] {
        let choice = choose(&on, key, &three());
        assert_eq!(choice.chosen, "rounds");
        println!("\nchose {key} {:?}", choice.why);
    }
}

#[test]
fn processes_measure_a_key_once() {
    let store = folder("processes").join("tune.jsonl");
    let children: Vec<_> = (0..4)
        .map(|_| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "choose::child", "--nocapture"]);
            command.env("KILN_TEST_CHOOSE", &store);
            command.stdout(std::process::Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    let mut all = String::new();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        all += &String::from_utf8(output.stdout).unwrap();
    }
    for key in ["a", "b", "c"] {
        let count = |why: &str| all.matches(&format!("chose {key} {why}")).count();
        assert_eq!((count("Measured"), count("Store")), (1, 3), "{all}");
    }
}
