//! Damaged files of every reader: an error, or values of no more memory than twice the file and the limit.
//! `KILN_DAMAGES` sets the number of cases per reader.

use super::*;
use kiln_compiler::tune::{Outcome, Record, SCHEMA, Store, Trial};
use kiln_ir::Graph;
use kiln_nn::{Checkpoint, Forward, Linear};
use kiln_onnx::Export;
use kiln_package::Options;
use kiln_plan::Plan;
use kiln_tensor::{DType, Spec, Tensor, compile};
use kiln_vision::datasets::CocoDetection;
use std::panic::catch_unwind;

/// The memory that decoders take besides the contents.
const DECODERS: usize = 256 << 10;

/// A reader, and a file that it reads.
struct Reader {
    name: &'static str,
    file: PathBuf,
    /// True if the file is read.
    read: fn(&Path) -> bool,
    /// A change behind the damage, such as of a checksum.
    mended: fn(Vec<u8>) -> Vec<u8>,
}

/// The bytes of a plan or entry with a right checksum.
pub(crate) fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() < 20 {
        return bytes;
    }
    let sum = bytes[20..].iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
    });
    bytes[12..20].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn readers(folder: &Path) -> Vec<Reader> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."));
    let mut readers = Vec::new();
    let mut add = |name: &'static str, bytes: Vec<u8>, read: fn(&Path) -> bool| {
        let file = folder.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, bytes).unwrap();
        let mended = match name.ends_with(".plan") || name.ends_with(".entry") {
            true => with_checksum,
            false => |bytes| bytes,
        };
        readers.push(Reader {
            name,
            file,
            read,
            mended,
        });
    };
    let fixture = |path: &str| std::fs::read(root.join(path)).unwrap();
    let bytes_of = |write: &dyn Fn(&Path)| {
        std::fs::create_dir_all(folder).unwrap();
        let file = folder.join("written");
        write(&file);
        std::fs::read(file).unwrap()
    };

    let loads = |p: &Path| load(p).is_ok();
    let pytorch = |name| fixture(&format!("crates/formats/tests/formats/pytorch/{name}"));
    add("zip.pt", pytorch("zip.pt"), loads);
    add("compressed.pt", pytorch("compressed.pt"), loads);
    add("no_checksum.pt", pytorch("no_checksum.pt"), loads);
    add("legacy.pt", pytorch("legacy.pt"), loads);
    add("tar.pt", pytorch("tar.pt"), loads);
    add("zip.safetensors", pytorch("zip.safetensors"), |p| {
        read_safetensors(p).is_ok()
    });
    let index = r#"{"metadata": {"total_size": 8}, "weight_map": {"a": "one.safetensors"}}"#;
    add("model.safetensors.index.json", index.into(), loads);
    let one = b"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    let one = [&(one.len() as u64).to_le_bytes()[..], one, &[0; 8]].concat();
    std::fs::write(folder.join("one.safetensors"), one).unwrap();
    add(
        "state.pkl",
        fixture("crates/formats/tests/formats/pickles/protocol5.pkl"),
        |p| read_pickle(p).is_ok(),
    );
    let x = Tensor::arange(0, 300, 1).reshape([20, 15]);
    let arrays = [("x", &x), ("y", &x)];
    add("x.npy", kiln_formats::npy_to_bytes(&x).unwrap(), |p| {
        kiln_formats::read_npy(p).is_ok()
    });
    let stored = bytes_of(&|p| kiln_formats::write_npz(p, arrays).unwrap());
    add("stored.npz", stored, |p| read_npz(p).is_ok());
    let packed = bytes_of(&|p| kiln_formats::write_npz_compressed(p, arrays).unwrap());
    add("packed.npz", packed, |p| read_npz(p).is_ok());
    let table = [
        &b"a,b,\"c, d\"\n"[..],
        &b"1,-2.5e3,x\n3,nan,\"y\"\"z\"\n".repeat(20),
    ]
    .concat();
    let read_table =
        |p: &Path| CsvTable::read(p).is_ok_and(|table| table.column::<f64>("b").is_ok());
    add("table.csv", table.clone(), read_table);
    add("table.csv.gz", gzip(&table), read_table);
    let layer = Linear::new(4, 3).unwrap();
    let checkpoint = Checkpoint::new().module("model", &layer).value("epoch", &7);
    let checkpoint = bytes_of(&|p| checkpoint.save(p).unwrap());
    add("last.checkpoint", checkpoint, |p| {
        Checkpoint::load(p).is_ok()
    });

    let opens = |p: &Path| Image::open(p).is_ok();
    let image = Image::filled(19, 13, Mode::RGBA, &[9, 100, 200, 255]).unwrap();
    let encoded = |format| image.encode(format).unwrap();
    add("plain.png", encoded(Format::Png), opens);
    add("plain.webp", encoded(Format::WebP), opens);
    let goldens = |name| fixture(&format!("crates/vision/tests/vision/goldens/{name}"));
    add("palette.png", goldens("palette.png"), opens);
    add("420.jpg", goldens("420.jpg"), opens);
    add("progressive.jpg", goldens("progressive.jpg"), opens);
    add("palette.gif", goldens("palette.gif"), opens);
    let rgb = Image::filled(19, 13, Mode::RGB, &[9, 100, 200]).unwrap();
    add("plain.bmp", rgb.encode(Format::Bmp).unwrap(), opens);

    let digits = [&[0, 0, 8, 3][..], &be(2), &be(3), &be(3), &[7; 18]].concat();
    let labels = [&[0, 0, 8, 1][..], &be(2), &[1, 2]].concat();
    let file = folder.join("MNIST/raw/train-labels-idx1-ubyte");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, labels).unwrap();
    add("MNIST/raw/train-images-idx3-ubyte", digits, |p| {
        mnist(p).is_ok()
    });
    add("train_32x32.mat", mat([32, 32, 3, 1], 3072), |p| {
        svhn(p).is_ok() || svhn(p).is_err_and(|e| e.message().contains("no array y"))
    });
    let coco = r#"{"images": [{"id": 1, "file_name": "a.jpg", "width": 2, "height": 2}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "bbox": [0, 0, 1, 1], "area": 1, "iscrowd": 0}],
        "categories": [{"id": 3, "name": "cat"}]}"#;
    add("instances.json", coco.into(), |p| {
        CocoDetection::new(p.parent().unwrap(), p).is_ok()
    });

    let f = compile(Spec::new(DType::F32, ("n", 4)), |x| layer.call(x).relu()).unwrap();
    let model = bytes_of(&|p| kiln_onnx::export(&f, p, Export::new()).unwrap());
    add("model.onnx", model, |p| kiln_onnx::load(p).is_ok());
    let package = fixture("crates/package/tests/fixtures/format3.kiln");
    add("trusted.kiln", package.clone(), |p| {
        Options::new().trusted(true).open(p).is_ok()
    });
    add("checked.kiln", package, |p| {
        kiln_package::Package::open(p).is_ok()
    });
    add("package.safetensors", pytorch("zip.safetensors"), |p| {
        kiln_package::read_safetensors(p).is_ok()
    });
    let entry = fixture("crates/runtime/tests/fixtures/small_cnn.entry");
    let plan = Entry::from_bytes(&entry).unwrap().plan;
    add("program.entry", entry, |p| {
        Entry::from_bytes(&std::fs::read(p).unwrap()).is_ok()
    });
    add("program.plan", plan.to_bytes(), |p| {
        Plan::from_bytes(&std::fs::read(p).unwrap()).is_ok()
    });
    let text = "graph {\n  symbols s0 >= 2 \"n\"\n  %0: f32[s0, 3] = input(index: 0, role: Data)\n  \
                %1: i64[s0, 3] = input(index: 1, role: Data)\n  \
                %2: f32[s0, 3] = scatter(axis: 1, kind: Set) %0, %1, %0\n  return %2\n}";
    add("program.graph", text.into(), |p| {
        let text = std::fs::read(p).unwrap();
        Graph::parse(&String::from_utf8_lossy(&text)).is_ok()
    });
    let records = bytes_of(&|p| {
        let path = p.with_extension("jsonl");
        for key in ["a", "b", "c"] {
            Store::new(&path).put(record(key)).unwrap();
        }
        std::fs::rename(path, p).unwrap();
    });
    add("tune.jsonl", records, |p| Store::new(p).damage().is_empty());
    readers
}

fn record(key: &str) -> Record {
    let trial = Trial {
        name: "blocked".into(),
        workspace: 64,
        same_bits: true,
        predicted: Some(1.5),
        outcome: Outcome::Timed(vec![5, 7, 6]),
    };
    Record {
        key: key.into(),
        version: SCHEMA,
        at: 1,
        trials: vec![trial],
    }
}

/// Some bytes changed, taken out, put in, set to the ends of ranges, or the end cut off; mostly in the first ones.
fn damaged(file: &[u8], rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut out = file.to_vec();
    for _ in 0..rng.usize(1..5) {
        let near = if rng.bool() {
            out.len().min(200)
        } else {
            out.len()
        };
        let at = rng.usize(..near.max(1));
        let end = (at + rng.usize(1..9)).min(out.len());
        match rng.u8(..8) {
            _ if out.is_empty() => return out,
            0 => out.truncate(at),
            1 => drop(out.drain(at..end)),
            2 => out.insert(at, rng.u8(..)),
            3 => out[at] = rng.u8(..),
            4 => out[at..end].fill(*rng.choice(&[0, 0x7f, 0x80, 0xff]).unwrap()),
            5 => out[at..end].fill(b'9'),
            _ => out[at] ^= 1 << rng.u8(..8),
        }
    }
    out
}

pub(crate) fn damage_takes_no_more_than_the_limit(folder: &Path) {
    let readers = readers(folder);
    let broken: Vec<&str> = (readers.iter())
        .filter(|r| !(r.read)(&r.file))
        .map(|r| r.name)
        .collect();
    assert!(broken.is_empty(), "{broken:?} are not read");
    let rounds = std::env::var("KILN_DAMAGES").map_or(60, |n| n.parse().expect("a number"));
    let mut rng = fastrand::Rng::with_seed(5);
    let (mut faults, mut cases) = (Vec::new(), 0);
    memory::set_limit(Some(LIMIT));
    for reader in &readers {
        let whole = std::fs::read(&reader.file).unwrap();
        let (mut refused, mut most) = (0, 0);
        for round in 0..rounds {
            let bytes = (reader.mended)(damaged(&whole, &mut rng));
            std::fs::write(&reader.file, &bytes).unwrap();
            let before = NOW.load(Ordering::Relaxed);
            PEAK.store(before, Ordering::Relaxed);
            match catch_unwind(|| (reader.read)(&reader.file)) {
                Ok(read) => refused += usize::from(!read),
                Err(_) => faults.push(format!("{}, round {round}: a panic", reader.name)),
            }
            let taken = PEAK.load(Ordering::Relaxed) - before;
            let beyond = taken.saturating_sub(2 * bytes.len());
            most = most.max(beyond);
            if beyond > LIMIT + DECODERS {
                let name = reader.name;
                faults.push(format!(
                    "{name}, round {round}: {taken} bytes for {}",
                    bytes.len()
                ));
            }
            cases += 1;
        }
        println!(
            "{:32} {refused:6} of {rounds} refused, {most:8} bytes beyond twice the file",
            reader.name
        );
    }
    memory::set_limit(None);
    println!("{cases} damaged files of {} readers", readers.len());
    assert!(
        faults.is_empty(),
        "{}:\n{}",
        faults.len(),
        faults[..faults.len().min(20)].join("\n")
    );
}
