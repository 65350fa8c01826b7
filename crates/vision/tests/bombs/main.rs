//! Bombs of every format: small files that would take far more memory than the limit. Each is an error that says so,
//! or is read without what it would take.
//!
//! [`damage`] damages files of every reader.
//!
//! The limit and the counted memory are the process's, so this is a program of its own, with one test.

mod damage;

use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use kiln_formats::{CsvTable, load, npy_from_bytes, read_npz, read_pickle, read_safetensors};
use kiln_plan::Entry;
use kiln_tensor::{ErrorKind, Result, memory};
use kiln_vision::datasets::{MNIST, SVHN, SvhnSplit};
use kiln_vision::{Format, Image, Mode};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The limit on memory.
const LIMIT: usize = 1 << 20;

/// The bytes that a bomb unpacks to.
const BOMB: usize = 8 << 20;

/// The maximum number of bytes that a reader may take: the limit, a vector that grows to twice of it, and what decoders
/// have.
const MAX_TAKEN: usize = 4 * LIMIT;

/// An allocator that counts.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grown(by: usize) {
    let now = NOW.fetch_add(by, Ordering::Relaxed) + by;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: it is the system's allocator, and only counts beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The outcome of a read, and whether it is to be an error.
struct Case {
    name: &'static str,
    file: PathBuf,
    read: fn(&Path) -> Result<()>,
    /// A part of the error; empty if the file is read.
    wanted: &'static str,
}

#[test]
fn bombs_take_no_more_than_the_limit() {
    let folder = std::env::temp_dir().join(format!("kiln-bombs-{}", std::process::id()));
    let cases = cases(&folder);
    memory::set_limit(Some(LIMIT));
    for case in &cases {
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        memory::reset_peak();
        let read = (case.read)(&case.file);
        let name = case.name;
        match (read, case.wanted) {
            (Ok(()), "") => {}
            (Ok(()), _) => panic!("{name}: it is read"),
            (Err(e), "") => panic!("{name}: {e}"),
            (Err(e), wanted) => {
                assert!(e.message().contains(wanted), "{name}: {e}\nlacks {wanted}");
                let memory = wanted.contains("limit") || wanted.contains("out of memory");
                assert!(
                    !memory || e.kind() == ErrorKind::Memory,
                    "{name}: {:?}",
                    e.kind()
                );
            }
        }
        let taken = PEAK.load(Ordering::Relaxed) - before;
        assert!(taken < MAX_TAKEN, "{name}: it took {taken} bytes");
        assert!(memory::stats().peak <= LIMIT, "{name}");
    }
    memory::set_limit(None);
    damage::damage_takes_no_more_than_the_limit(&folder.join("damage"));
    std::fs::remove_dir_all(&folder).unwrap();
    damaged_entries_take_little();
    empty_tensors_take_little();
}

/// Tensors without elements, which take a file no more than their names.
fn empty_tensors_take_little() {
    const COUNT: usize = 100_000;
    let file = std::env::temp_dir().join(format!("kiln-empty-{}", std::process::id()));
    std::fs::write(&file, many_tensors(COUNT, 0)).unwrap();
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let (state, _) = read_safetensors(&file).unwrap();
    let [now, peak] = [&NOW, &PEAK].map(|n| (n.load(Ordering::Relaxed) - before) / COUNT);
    println!("{now} bytes a tensor, at the peak {peak}");
    assert!(
        state.len() == COUNT && now <= 150 && peak <= 300,
        "{now}, {peak}"
    );
    std::fs::remove_file(file).unwrap();
}

/// Decodes entries with flipped bits, other bytes and missing ends, behind a checksum that fits: lengths in them claim
/// what the bytes don't hold.
fn damaged_entries_take_little() {
    let good = include_bytes!("../../../runtime/tests/fixtures/small_cnn.entry");
    Entry::from_bytes(good).unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut decoded = 0;
    for round in 0..20_000 {
        let mut bytes = good.to_vec();
        if round % 4 == 3 {
            bytes.truncate(rng.usize(21..bytes.len()));
        }
        for _ in 0..rng.usize(1..6) {
            let at = rng.usize(20..bytes.len());
            bytes[at] = match rng.u8(..3) {
                0 => rng.u8(..),
                1 => 0xFF,
                _ => bytes[at] ^ 1 << rng.u8(..8),
            };
        }
        let bytes = damage::with_checksum(bytes);
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        decoded += usize::from(Entry::from_bytes(&bytes).is_ok());
        let taken = PEAK.load(Ordering::Relaxed) - before;
        assert!(taken < LIMIT, "round {round} took {taken} bytes");
    }
    assert!(decoded > 0 && decoded < 20_000, "{decoded}");
}

/// Writes all files.
fn cases(folder: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: &'static str, bytes: Vec<u8>, wanted, read| {
        assert!(bytes.len() < LIMIT / 2, "{name} is small: {}", bytes.len());
        let file = folder.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, bytes).unwrap();
        cases.push(Case {
            name,
            file,
            read,
            wanted,
        });
    };
    let limit = "of the memory limit of 1048576";

    let array = [npy(BOMB), vec![0; BOMB]].concat();
    add("x.npz", zip(&[("x.npy", &array)]), limit, |p| {
        read_npz(p).map(drop)
    });
    let spaces = [&b"\x93NUMPY\x02\0\xff\xff\x7f\0"[..], &b" ".repeat(BOMB)].concat();
    add("header.npz", zip(&[("x.npy", &spaces)]), limit, |p| {
        read_npz(p).map(drop)
    });
    add(
        "claims.npz",
        zip(&[("x.npy", &npy(1 << 40))]),
        "ends after 0",
        |p| read_npz(p).map(drop),
    );
    add("claims.npy", npy(1 << 40), "ends after 0", |p| {
        npy_from_bytes(&std::fs::read(p).unwrap()).map(drop)
    });

    let text = [
        &b"\x80\x04\x8e"[..],
        &(BOMB as u64).to_le_bytes(),
        &vec![0; BOMB],
        b".",
    ]
    .concat();
    add("pickle.pt", zip(&[("a/data.pkl", &text)]), limit, |p| {
        load(p).map(drop)
    });
    let same = [&b"\x80\x02N"[..], &b"2".repeat(BOMB), b"."].concat();
    add("stack.pt", zip(&[("a/data.pkl", &same)]), limit, |p| {
        load(p).map(drop)
    });
    let whole = checkpoint(BOMB as u32 / 4, &b"."[..]);
    let parts: [(&str, &[u8]); 2] = [("a/data.pkl", &whole), ("a/data/0", &vec![0; BOMB])];
    add("storage.pt", zip(&parts), "out of memory", |p| {
        load(p).map(drop)
    });
    let mut file = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.".to_vec();
    file.extend([&b"\x80\x02X\xff\xff\xff\x7f"[..], b"short"].concat());
    add("legacy.pt", file, limit, |p| load(p).map(drop));
    // Each of many tensors lies under a long key.
    let key = [&b"X\0\0\x04\0"[..], &b"k".repeat(1 << 18)].concat();
    let many = [
        &b"00}"[..],
        &key,
        b"](",
        &b"h\x01h\x02R".repeat(2000),
        b"es.",
    ]
    .concat();
    let parts: [(&str, &[u8]); 2] = [("a/data.pkl", &checkpoint(1, &many)), ("a/data/0", &[0; 4])];
    add("path.pt", zip(&parts), "", |p| load(p).map(drop));
    // One long key is set again and again.
    let again = [
        &b"\x80\x02"[..],
        &key,
        b"q\0}(",
        &b"h\0N".repeat(3000),
        b"u.",
    ]
    .concat();
    add("key.pickle", again.clone(), "", |p| {
        read_pickle(p).map(drop)
    });
    let named = [
        &b"\x80\x02"[..],
        &key,
        b"q\0",
        &b"h\0h\0\x93".repeat(10_000),
        b".",
    ]
    .concat();
    add("names.pickle", named, "a name of 524288 bytes", |p| {
        read_pickle(p).map(drop)
    });

    let head = [&[0, 0, 8, 3][..], &be(BOMB >> 10), &be(32), &be(32)].concat();
    add(
        "a/MNIST/raw/train-labels-idx1-ubyte.gz",
        gzip(&[0, 0, 8, 1]),
        "",
        |_| Ok(()),
    );
    let images = gzip(&[&head[..], &vec![0; BOMB]].concat());
    add(
        "a/MNIST/raw/train-images-idx3-ubyte.gz",
        images,
        limit,
        mnist,
    );
    let one = [&[0, 0, 8, 3][..], &be(1), &be(1), &be(1), &[7]].concat();
    add(
        "b/MNIST/raw/train-images-idx3-ubyte.gz",
        gzip(&one),
        "",
        |_| Ok(()),
    );
    let labels = [&[0, 0, 8, 1][..], &be(BOMB), &vec![0; BOMB]].concat();
    add(
        "b/MNIST/raw/train-labels-idx1-ubyte.gz",
        gzip(&labels),
        "1 images for",
        mnist,
    );
    add("a/train_32x32.mat", mat([BOMB, 1, 1, 1], BOMB), limit, svhn);
    add(
        "b/train_32x32.mat",
        mat([32, 32, 3, 1], BOMB),
        "there is space for",
        svhn,
    );

    let table = [&b"a,b\n"[..], &b"1,2\n".repeat(BOMB / 4)].concat();
    add("rows.csv.gz", gzip(&table), limit, |p| {
        CsvTable::read(p).map(drop)
    });
    add("line.csv.gz", gzip(&vec![b'a'; BOMB]), limit, |p| {
        CsvTable::read(p).map(drop)
    });
    add("many.safetensors", many_tensors(3000, 0), "", |p| {
        read_safetensors(p).map(drop)
    });
    add("bytes.safetensors", many_tensors(3000, 1), limit, |p| {
        read_safetensors(p).map(drop)
    });
    add(
        "claims.safetensors",
        b"\xff\xff\xff\x04\0\0\0\0{}".to_vec(),
        "can't be 83886079",
        |p| read_safetensors(p).map(drop),
    );

    let open = |p: &Path| Image::open(p).map(drop);
    let bomb = zlib(&vec![0; BOMB]);
    let dot = [
        chunk(b"IHDR", &header(1)),
        chunk(b"IDAT", &zlib(&[0; 4])),
        chunk(b"IEND", b""),
    ];
    let with = |name, packed: &[u8]| {
        let extra = chunk(name, &[b"x\0\0", packed].concat());
        [&b"\x89PNG\r\n\x1a\n"[..], &dot[0], &extra, &dot[1], &dot[2]].concat()
    };
    add("text.png", with(b"zTXt", &bomb), "", open);
    add("profile.png", with(b"iCCP", &bomb), "", open);
    let side = (BOMB as f64 / 3.0).sqrt() as usize;
    let image = Image::filled(side, side, Mode::RGB, &[1, 1, 1]).unwrap();
    let claimed = "of the memory limit";
    add("a.png", image.encode(Format::Png).unwrap(), claimed, open);
    add("a.gif", image.encode(Format::Gif).unwrap(), claimed, open);
    add("a.webp", image.encode(Format::WebP).unwrap(), claimed, open);
    add("a.jpg", image.encode(Format::Jpeg).unwrap(), claimed, open);
    cases
}

fn mnist(images: &Path) -> Result<()> {
    MNIST::new(images.ancestors().nth(3).unwrap(), true).map(drop)
}

fn svhn(file: &Path) -> Result<()> {
    SVHN::new(file.parent().unwrap(), SvhnSplit::Train).map(drop)
}

/// A safetensors file of this many vectors of `len` bytes.
fn many_tensors(count: usize, len: usize) -> Vec<u8> {
    let entry = |i: usize| {
        let (from, to) = (i * len, (i + 1) * len);
        format!("\"t{i:06}\":{{\"dtype\":\"U8\",\"shape\":[{len}],\"data_offsets\":[{from},{to}]}}")
    };
    let header = (0..count).map(entry).collect::<Vec<_>>().join(",");
    let header = format!("{{{header}}}");
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &vec![7; count * len]].concat()
}

/// The start of a `.npy` file of `len` bytes.
fn npy(len: usize) -> Vec<u8> {
    let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({len},), }}");
    let text = format!("{text:<117}\n");
    [
        &b"\x93NUMPY\x01\0"[..],
        &(text.len() as u16).to_le_bytes(),
        text.as_bytes(),
    ]
    .concat()
}

/// The start of a pickle that leaves a tensor of `elements` floats on the stack; what builds it is remembered.
fn checkpoint(elements: u32, rest: &[u8]) -> Vec<u8> {
    let size = [&b"J"[..], &elements.to_le_bytes()].concat();
    [
        &b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x01((X\x07\0\0\0storagectorch\nFloatStorage\n"[..],
        b"X\x01\0\0\x000X\x03\0\0\0cpu",
        &size,
        b"tQK\0",
        &size,
        b"\x85K\x01\x85\x89ccollections\nOrderedDict\n)Rtq\x02",
        if rest == b"." { b"R" } else { b"" },
        rest,
    ]
    .concat()
}

fn be(size: usize) -> [u8; 4] {
    (size as u32).to_be_bytes()
}

/// A MATLAB file with an array of these sizes and `len` bytes.
fn mat(sizes: [usize; 4], len: usize) -> Vec<u8> {
    let words =
        |all: &[usize]| -> Vec<u8> { all.iter().flat_map(|n| (*n as u32).to_le_bytes()).collect() };
    let parts: [&[u8]; 6] = [
        &words(&[6, 8, 9, 0, 5, 16]),
        &words(&sizes),
        &words(&[1 | 1 << 16]),
        b"X\0\0\0",
        &words(&[2, len]),
        &vec![0; len],
    ];
    let array = parts.concat();
    let packed = zlib(&[words(&[14, array.len()]), array].concat());
    let mut file = b"MATLAB 5.0 MAT-file".to_vec();
    file.resize(124, b' ');
    file.extend([0, 1, b'I', b'M']);
    file.extend(words(&[15, packed.len()]));
    file.extend(packed);
    file
}

/// A chunk of a PNG. Checksums of unknown contents are not compared here.
fn chunk(name: &[u8; 4], contents: &[u8]) -> Vec<u8> {
    let mut crc = flate2::Crc::new();
    crc.update(name);
    crc.update(contents);
    [
        &be(contents.len()),
        &name[..],
        contents,
        &crc.sum().to_be_bytes(),
    ]
    .concat()
}

/// The header of a square PNG in RGB.
fn header(side: usize) -> Vec<u8> {
    [&be(side)[..], &be(side), &[8, 2, 0, 0, 0]].concat()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut packed = ZlibEncoder::new(Vec::new(), Default::default());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Default::default());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// A zip archive of packed files.
fn zip(files: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut all, mut directory) = (Vec::new(), Vec::new());
    let word = |n: usize| (n as u32).to_le_bytes();
    for (name, bytes) in files {
        let mut packed = DeflateEncoder::new(Vec::new(), Default::default());
        packed.write_all(bytes).unwrap();
        let packed = packed.finish().unwrap();
        let mut crc = flate2::Crc::new();
        crc.update(bytes);
        let parts: [&[u8]; 5] = [
            &[20, 0, 0, 0, 8, 0, 0, 0, 0x21, 0],
            &crc.sum().to_le_bytes(),
            &word(packed.len()),
            &word(bytes.len()),
            &word(name.len()),
        ];
        let common = parts.concat();
        let parts: [&[u8]; 5] = [
            b"PK\x01\x02\x14\0",
            &common,
            &[0; 10],
            &word(all.len()),
            name.as_bytes(),
        ];
        directory.extend(parts.concat());
        let parts: [&[u8]; 4] = [b"PK\x03\x04", &common, name.as_bytes(), &packed];
        all.extend(parts.concat());
    }
    let count = (files.len() as u16).to_le_bytes();
    let (size, at) = (word(directory.len()), word(all.len()));
    let parts: [&[u8]; 9] = [
        &all,
        &directory,
        b"PK\x05\x06",
        &[0; 4],
        &count,
        &count,
        &size,
        &at,
        &[0; 2],
    ];
    parts.concat()
}
