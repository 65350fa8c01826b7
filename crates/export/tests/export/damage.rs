//! Damaged packages are refused, or run within their own memory; they never panic.

use crate::archive::{self, Member};
use crate::support::trainee;
use kiln_package::{Buffer, Cancel, Error, Features, Options, Package, RuntimeError, Size};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Reads a number from the environment, for long runs.
pub fn given(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|s| s.parse().ok()).unwrap_or(otherwise)
}

/// xorshift64*.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

fn package() -> Vec<u8> {
    let builder = trainee(1).builder();
    let packed = builder.packed_weights(Features::current().unwrap());
    packed.to_bytes().unwrap()
}

/// Cancels long runs of damaged packages.
struct Watch(Arc<Mutex<Option<(Instant, Cancel)>>>);

impl Watch {
    const PATIENCE: Duration = Duration::from_millis(300);

    fn new() -> Watch {
        let at = Arc::new(Mutex::new(None::<(Instant, Cancel)>));
        let seen = Arc::downgrade(&at);
        std::thread::spawn(move || {
            while let Some(at) = seen.upgrade() {
                if let Some((since, cancel)) = &*at.lock().unwrap()
                    && since.elapsed() > Watch::PATIENCE
                {
                    cancel.cancel();
                }
                drop(at);
                std::thread::sleep(Watch::PATIENCE / 8);
            }
        });
        Watch(at)
    }

    fn run(&self, f: impl FnOnce()) {
        let cancel = Cancel::new();
        *self.0.lock().unwrap() = Some((Instant::now(), cancel.clone()));
        cancel.watch(f);
        *self.0.lock().unwrap() = None;
    }
}

/// Opens a package and runs all its entries; returns how far that went. Any result except a panic or an internal error
/// is accepted.
fn survive(opened: Result<Package, Error>) -> &'static str {
    let Ok(package) = opened else {
        return "refused";
    };
    let names: Vec<String> = package.entries().map(String::from).collect();
    let mut ran = "opened";
    for name in names {
        let _ = package.graph(&name);
        let entry = match package.entry(&name) {
            Ok(entry) => entry,
            Err(Error::Run {
                error: e @ RuntimeError::Internal(_),
                ..
            }) => panic!("{e}"),
            Err(_) => continue,
        };
        for rows in [3, 1] {
            let size = |s: &Size| match s {
                Size::Known(n) => *n,
                Size::Symbolic(_) => rows,
            };
            let input = |i: &kiln_package::TensorInfo| {
                let shape: Vec<i64> = i.shape.iter().map(size).collect();
                let small = shape.iter().try_fold(1i64, |n, d| n.checked_mul(*d));
                let fits = small.is_some_and(|n| (0..1 << 16).contains(&n));
                Buffer::zeros(i.dtype, if fits { &shape } else { &[] }).unwrap()
            };
            let inputs: Vec<Buffer> = entry.interface().inputs.iter().map(input).collect();
            match entry.run(inputs) {
                Err(Error::Run {
                    error: e @ RuntimeError::Internal(_),
                    ..
                }) => panic!("{e}"),
                Err(_) => {}
                Ok(outputs) => {
                    ran = "ran";
                    outputs.iter().for_each(|(_, value)| drop(value.to_bytes()));
                }
            }
        }
    }
    for state in package.states() {
        let _ = package.get(&state.name).map(|b| b.to_bytes());
    }
    ran
}

#[test]
fn every_changed_bit_is_noticed() {
    let bytes = package();
    // The stride is prime, so that all bits of bytes are flipped. `KILN_PACKAGE_FLIPS=1` flips every bit.
    let stride = given("KILN_PACKAGE_FLIPS", 211) as usize;
    let mut changed = bytes.clone();
    for bit in (0..8 * bytes.len()).step_by(stride.max(1)) {
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(Package::from_bytes(&changed).is_err(), "bit {bit}");
        changed[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(changed == bytes && Package::from_bytes(&bytes).is_ok());
}

/// Damages bytes in several ways.
fn damaged(bytes: &[u8], r: &mut Random) -> Vec<u8> {
    let mut b = bytes.to_vec();
    for _ in 0..1 + r.below(3) {
        let (at, other) = (r.below(b.len()), r.below(b.len()));
        let span = 1 + r.below(64);
        match r.below(8) {
            0 => b[at] = r.next() as u8,
            1 => b[at] ^= 1 << r.below(8),
            2 => b.truncate(at.max(1)),
            3 => drop(b.drain(at..(at + span).min(b.len()))),
            4 => {
                let span = span.min(b.len() - at).min(b.len() - other);
                b.copy_within(other..other + span, at);
            }
            5 => b[at..].iter_mut().take(span).for_each(|x| *x = 0),
            6 => b.extend(std::iter::repeat_n(0, span)),
            _ => b.insert(at, r.next() as u8),
        }
        if b.is_empty() {
            break;
        }
    }
    b
}

#[test]
fn random_damage_is_noticed_and_harmless_where_nobody_looks() {
    let bytes = package();
    let count = given("KILN_PACKAGE_DAMAGES", 2_000);
    let mut r = Random(given("KILN_PACKAGE_SEED", 1) | 1);
    let watch = Watch::new();
    for round in 0..count {
        let b = damaged(&bytes, &mut r);
        if b == bytes {
            continue;
        }
        assert!(Package::from_bytes(&b).is_err(), "round {round}");
        if round % 20 == 0 {
            watch.run(|| {
                survive(Options::new().trusted(true).open_bytes(&b));
            });
        }
    }
}

#[test]
fn damage_behind_right_checksums_never_panics() {
    let bytes = package();
    let members = archive::read(&bytes);
    assert!(
        archive::written(&members) == bytes,
        "the form of the archive is another one"
    );
    let count = given("KILN_PACKAGE_MUTANTS", 400);
    let mut r = Random(given("KILN_PACKAGE_SEED", 1).wrapping_mul(0x9e37_79b9) | 1);
    kiln_package::memory::set_limit(Some(1 << 30));
    let watch = Watch::new();
    let mut seen = std::collections::BTreeMap::new();
    for round in 0..count {
        let mut members = members.clone();
        for _ in 0..1 + r.below(3) {
            structural(&mut members, &mut r);
        }
        let b = archive::written(&archive::summed(members));
        // If this process crashes, the last line names the round.
        if std::env::var_os("KILN_PACKAGE_TRACE").is_some() {
            println!("round {round}");
        }
        let count = &mut seen;
        watch.run(|| *count.entry(survive(Package::from_bytes(&b))).or_insert(0) += 1);
    }
    kiln_package::memory::set_limit(None);
    println!("{seen:?}");
    // Some damage gets past the first checks.
    assert!(count < 400 || seen.len() == 3, "{seen:?}");
}

/// Changes the structure of a package, in any of its members.
pub fn structural(members: &mut Vec<Member>, r: &mut Random) {
    let at = r.below(members.len());
    let Member { name, contents } = &mut members[at];
    match (&name[..], r.below(10)) {
        (_, 0) => {
            let other = r.below(members.len());
            let contents = members[other].contents.clone();
            members[at].contents = contents;
        }
        (_, 1) => drop(members.remove(at)),
        ("manifest.json", _) => {
            let mut json: Value = serde_json::from_slice(contents).unwrap_or_default();
            for _ in 0..1 + r.below(2) {
                changed(&mut json, r);
            }
            *contents = serde_json::to_vec(&json).unwrap();
        }
        ("weights.safetensors", 2..6) if contents.len() > 8 => {
            let length = u64::from_le_bytes(*contents.first_chunk().unwrap()) as usize;
            let end = (8 + length).min(contents.len());
            let mut json: Value = serde_json::from_slice(&contents[8..end]).unwrap_or_default();
            changed(&mut json, r);
            let mut header = serde_json::to_vec(&json).unwrap();
            header.resize((8 + header.len()).next_multiple_of(64) - 8, b' ');
            let mut new = (header.len() as u64).to_le_bytes().to_vec();
            new.extend(header);
            new.extend(&contents[end..]);
            *contents = new;
        }
        (_, 9) if !contents.is_empty() => contents.truncate(r.below(contents.len())),
        _ if contents.len() > 20 => {
            let at = 20 + r.below(contents.len() - 20);
            contents[at] = match r.below(3) {
                0 => r.next() as u8,
                1 => contents[at] ^ 1 << r.below(8),
                _ => contents[at].wrapping_add(1),
            };
        }
        _ => {}
    }
}

/// Changes some part of a JSON value.
fn changed(json: &mut Value, r: &mut Random) {
    match json {
        Value::Array(list) if !list.is_empty() => {
            let at = r.below(list.len());
            match r.below(8) {
                0 => drop(list.remove(at)),
                1 => list.push(list[at].clone()),
                2 => list.swap(0, at),
                _ => changed(&mut list[at], r),
            }
        }
        Value::Object(map) if !map.is_empty() => {
            let keys: Vec<String> = map.keys().cloned().collect();
            let (key, other) = (&keys[r.below(keys.len())], &keys[r.below(keys.len())]);
            match r.below(12) {
                0 => drop(map.remove(key)),
                1 => drop(map.insert("other".into(), map[key].clone())),
                2 => drop(map.insert(key.clone(), map[other].clone())),
                _ => changed(&mut map[key], r),
            }
        }
        Value::Number(n) => {
            let n = n.as_i64().unwrap_or(0);
            let near = [n.wrapping_add(1), n.wrapping_sub(1), n.wrapping_neg()];
            let far = [0, 1, 2, n.wrapping_mul(2), i64::MAX, i64::MIN, 1 << 40];
            let values = [&near[..], &far].concat();
            *json = values[r.below(values.len())].into();
        }
        Value::String(s) => {
            let values = [
                "",
                "f64",
                "cuda",
                "batch",
                "../a",
                "train_step",
                "0.weight",
                "rng_state",
            ];
            *json = match r.below(3) {
                0 => values[r.below(values.len())].into(),
                1 => format!("{s}x").into(),
                _ => s.chars().skip(1).collect::<String>().into(),
            };
        }
        Value::Bool(b) => *b = !*b,
        _ => *json = Value::from(1),
    }
}
