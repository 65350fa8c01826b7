//! Checkpoints: complete, or absent.

use crate::support::values;
use kiln_nn::optim::{AdamW, Optimizer, SGD, Scheduler, StepLR};
use kiln_nn::*;
use kiln_tensor::{DType, ErrorKind, Tensor, get_rng_state, set_rng_state, with_seed};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct Training {
    model: Sequential,
    optimizer: Optimizer,
    schedule: Scheduler,
}

impl Training {
    fn new(width: usize) -> Training {
        let model = sequential!["body": Linear::new(3, width), "norm": BatchNorm1d::new(width), "drop": Dropout::new(0.3), "head": Linear::new(width, 2)].unwrap();
        let mut optimizer = Optimizer::new(model.parameters(), AdamW::new()).unwrap();
        let step = StepLR::new(2).gamma(0.5);
        let schedule = Scheduler::new(&mut optimizer, step).unwrap();
        Training {
            model,
            optimizer,
            schedule,
        }
    }

    fn steps(&mut self, steps: usize) {
        for i in 0..steps {
            let x = with_seed(i as u64, || Tensor::rand([4, 3], DType::F32));
            self.optimizer.zero_grad();
            let loss = self.model.call(&x).square().sum(());
            loss.backward().unwrap();
            self.optimizer.step().unwrap();
            self.schedule.step(&mut self.optimizer).unwrap();
        }
    }

    fn weights(&self) -> Vec<Vec<f64>> {
        let state = self.model.state_dict();
        state.iter().map(|(_, t)| values(t)).collect()
    }

    fn save(&self, step: u64, path: &Path) {
        Checkpoint::new()
            .module("model", &self.model)
            .optimizer("optimizer", &self.optimizer)
            .scheduler("schedule", &self.schedule)
            .value("step", &step)
            .value("rng", &get_rng_state())
            .save(path)
            .unwrap();
    }

    fn load(&mut self, path: &Path) -> Result<u64> {
        let checkpoint = Checkpoint::load(path)?;
        let restore = checkpoint
            .restore()
            .module("model", &self.model)
            .optimizer("optimizer", &mut self.optimizer)
            .scheduler("schedule", &mut self.schedule);
        restore.finish()?;
        set_rng_state(checkpoint.get("rng")?);
        checkpoint.get("step")
    }
}

fn checkpoint_path(folder: &TempDir) -> PathBuf {
    folder.path().join("last.safetensors")
}

#[test]
fn training_goes_on_as_if_it_had_not_stopped() {
    let folder = tempfile::tempdir().unwrap();
    with_seed(5, || {
        let mut first = Training::new(8);
        first.steps(3);
        first.save(3, &checkpoint_path(&folder));
        first.steps(3);

        let mut second = Training::new(8);
        assert_eq!(second.load(&checkpoint_path(&folder)).unwrap(), 3);
        assert_ne!(second.weights(), first.weights());
        second.steps(3);
        assert_eq!(second.weights(), first.weights());
        assert_eq!(second.optimizer.lr(), first.optimizer.lr());
    });
}

#[test]
fn what_does_not_fit_changes_nothing_and_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let mut saved = Training::new(8);
    saved.steps(1);
    saved.save(1, &checkpoint_path(&folder));

    // The model fits and the optimiser doesn't; then the reverse.
    let mut other = Training::new(8);
    let before = other.weights();
    let half = &other.model.parameters()[..2];
    other.optimizer = Optimizer::new(half, SGD::new()).unwrap();
    let e = other.load(&checkpoint_path(&folder)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Value);
    let text = e.to_string();
    assert!(text.contains("optimizer: a group of 6 parameters can't be loaded into one of 2"));
    assert!(text.contains("checkpoint.rs"), "{text}");
    assert_eq!(other.weights(), before);

    let mut other = Training::new(9);
    let before = other.weights();
    let text = other
        .load(&checkpoint_path(&folder))
        .unwrap_err()
        .to_string();
    let shape = "model.body.weight: the module's shape is [9, 3], the given one [8, 3]";
    assert!(text.contains(shape), "{text}");
    assert!(text.contains("optimizer: exp_avg of parameter 0"), "{text}");
    assert_eq!(other.weights(), before);
    assert!(other.optimizer.state_dict().unwrap().state.is_empty());

    let checkpoint = Checkpoint::load(checkpoint_path(&folder)).unwrap();
    let names: Vec<&str> = checkpoint.names().collect();
    assert_eq!(names, ["model", "optimizer", "rng", "schedule", "step"]);
    let restore = checkpoint.restore().module("net", &other.model);
    let restore = restore.module("schedule", &other.model);
    let text = restore.finish().unwrap_err().to_string();
    assert!(
        text.contains("there is no `net`, a module, among [\"model\""),
        "{text}"
    );
    assert!(
        text.contains("`schedule` is a schedule, not a module"),
        "{text}"
    );
    let e = checkpoint.get::<String>("step").unwrap_err();
    assert!(e.message().contains("`step`: invalid type"), "{e}");
    assert!(checkpoint.get::<u64>("epoch").is_err());
    // Parts of a model are loaded as usual.
    let body = checkpoint.state_dict("model").part("body.");
    Linear::new(3, 8)
        .unwrap()
        .load_state_dict(&body, true)
        .unwrap();
}

#[test]
fn values_come_back_exactly_or_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let history: Vec<f64> = (1..500).map(|i| (i as f64).sqrt().ln() / 3.0).collect();
    let named = HashMap::from([("best".to_string(), 0.1f32)]);
    let checkpoint = Checkpoint::new()
        .value("history", &history)
        .value("named", &named);
    checkpoint.save(checkpoint_path(&folder)).unwrap();
    let loaded = Checkpoint::load(checkpoint_path(&folder)).unwrap();
    assert_eq!(loaded.get::<Vec<f64>>("history").unwrap(), history);
    assert_eq!(loaded.get::<HashMap<String, f32>>("named").unwrap(), named);

    let refused = |c: Checkpoint, text: &str| {
        let e = c.save(checkpoint_path(&folder)).unwrap_err();
        assert!(e.message().contains(text), "{e}");
        assert!(e.loc().to_string().contains("checkpoint.rs"), "{e}");
        assert!(Checkpoint::load(checkpoint_path(&folder)).is_ok());
    };
    let new = Checkpoint::new;
    refused(
        new().value("best", &f64::INFINITY),
        "`best` can't be written",
    );
    refused(new().value("a", &1).value("a", &2), "two parts called `a`");
    refused(new().value("a.b", &1), "no dots");
    refused(new().value("", &1), "needs a name");

    StateDict::new().save(checkpoint_path(&folder)).unwrap();
    let e = Checkpoint::load(checkpoint_path(&folder)).err().unwrap();
    assert!(e.message().contains("no checkpoint"), "{e}");
}

const CHILD: &str = "KILN_TEST_CHECKPOINT_CHILD";

/// Checks that every part has the values of one step.
fn check(t: &Training, step: u64) {
    let weights = t.weights();
    assert!(weights.iter().flatten().all(|w| *w == step as f64));
    let state = t.optimizer.state_dict().unwrap();
    assert_eq!(t.optimizer.lr(), [step as f64 / 1024.0]);
    for moments in state.state.values() {
        let moment = values(&moments["exp_avg"]);
        assert!(moment.iter().all(|m| *m == step as f64));
    }
}

fn set(t: &mut Training, step: u64) {
    let full = |t: &Tensor| t.zeros_like() + step as i64;
    for v in t.model.parameters().into_iter().chain(t.model.buffers()) {
        v.assign(full(&v.get())).unwrap();
    }
    let mut state = t.optimizer.state_dict().unwrap();
    for moments in state.state.values_mut() {
        let moment = full(&moments["exp_avg"]);
        moments.insert("exp_avg".into(), moment);
    }
    t.optimizer.load_state_dict(&state).unwrap();
    t.optimizer.set_lr(step as f64 / 1024.0).unwrap();
}

/// The child of the next test: writes checkpoints until it is killed.
#[test]
#[ignore = "a process that the next test kills"]
fn writes_checkpoints_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let path = PathBuf::from(path);
    let mut t = Training::new(40_000);
    let mut step = match path.exists() {
        true => t.load(&path).unwrap(),
        false => {
            t.steps(1);
            0
        }
    };
    loop {
        step += 1;
        set(&mut t, step);
        t.save(step, &path);
    }
}

#[test]
fn a_writer_that_is_killed_leaves_a_whole_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = checkpoint_path(&folder);
    let spawn = || -> Child {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let name = "checkpoint::writes_checkpoints_until_it_is_killed";
        child.args([name, "--exact", "--ignored", "--quiet"]);
        child.env(CHILD, &path).stdout(std::process::Stdio::null());
        child.spawn().unwrap()
    };
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    let modified = || std::fs::metadata(&path).and_then(|m| m.modified()).ok();
    let mut reader = Training::new(40_000);
    let (mut last, mut torn) = (0, 0);
    for round in 0..20u64 {
        let mut child = spawn();
        let (before, start) = (modified(), Instant::now());
        // Once it writes, it is killed at a moment that differs from round to round.
        while modified() == before && start.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(1));
        }
        match round % 2 {
            0 => std::thread::sleep(Duration::from_micros(round * 7919 % 20_000)),
            // Some are killed while they write, on any machine.
            _ => while files() == 1 && start.elapsed() < Duration::from_secs(120) {},
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let half = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().path() != path;
        torn += std::fs::read_dir(folder.path())
            .unwrap()
            .map(half)
            .filter(|h| *h)
            .count();
        let step = reader.load(&path).unwrap();
        check(&reader, step);
        assert!(step > last, "the child wrote nothing");
        last = step;
    }
    // Some were killed while they wrote, and the next checkpoint removes their files.
    assert!(torn > 0);
    reader.save(last, &path);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_value_of_another_type_and_a_file_of_another_kind_name_the_users_line() {
    let checkpoint = Checkpoint::new().value("epoch", &7);
    let line = line!() + 1;
    let e = checkpoint.get::<String>("epoch").unwrap_err();
    assert!(e.loc().file().ends_with("checkpoint.rs"), "{e}");
    assert_eq!(e.loc().line(), line, "{e}");
    let line = line!() + 1;
    let e = checkpoint.get::<u64>("step").unwrap_err();
    assert_eq!((e.loc().line(), e.kind()), (line, ErrorKind::Value), "{e}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    let text = b"epoch,loss\n1,0.5\n".repeat(20);
    for bytes in [&b""[..], b"PK\x03\x04", &text] {
        std::fs::write(&path, bytes).unwrap();
        let e = StateDict::load(&path).err().unwrap();
        assert!(e.message().contains("weights: "), "{e}");
        assert!(e.loc().file().ends_with("checkpoint.rs"), "{e}");
        let e = Checkpoint::load(&path).err().unwrap();
        assert!(
            e.message().ends_with("this is not a safetensors file"),
            "{e}"
        );
    }
    // A truncated file gives another error.
    checkpoint.save(&path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let e = StateDict::load(&path).err().unwrap();
    assert!(
        e.message().contains("the safetensors file is damaged"),
        "{e}"
    );
}
