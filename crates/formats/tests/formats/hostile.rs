//! Pickles that try to run code or to exhaust memory, and damaged files.

use crate::{fixture, message};
use kiln_formats::{Value, load};
use kiln_tensor::Result;
use std::io::Write;
use std::path::Path;
use zip::write::SimpleFileOptions;

/// Writes a checkpoint of this pickle and these storages.
fn write(path: &Path, pickle: &[u8], storages: &[&[u8]], compressed: bool) {
    let file = std::fs::File::create(path).expect("it can be written");
    let mut zip = zip::ZipWriter::new(file);
    let method = match compressed {
        true => zip::CompressionMethod::Deflated,
        false => zip::CompressionMethod::Stored,
    };
    let options = SimpleFileOptions::default().compression_method(method);
    let names = (0..storages.len()).map(|i| format!("x/data/{i}"));
    let named = names.zip(storages.iter().copied());
    for (name, data) in [("x/data.pkl".to_string(), pickle)]
        .into_iter()
        .chain(named)
    {
        zip.start_file(name, options).expect("an entry");
        zip.write_all(data).expect("its bytes");
    }
    zip.finish().expect("the end");
}

/// The result of reading a checkpoint of this pickle.
fn read(pickle: &[u8], storages: &[&[u8]]) -> Result<Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pt");
    write(&path, pickle, storages, false);
    load(&path)
}

/// A pickled f32 tensor over storage 0 with `elements` elements: sizes and strides as pickled tuples.
fn tensor(elements: &[u8], offset: &[u8], sizes: &[u8], strides: &[u8]) -> Vec<u8> {
    let mut pickle = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage".to_vec();
    for part in [
        b"ctorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpu",
        elements,
        b"tQ",
        offset,
        sizes,
        strides,
    ] {
        pickle.extend_from_slice(part);
    }
    pickle.extend_from_slice(b"\x89}tR.");
    pickle
}

#[test]
fn code_is_never_run() {
    for (pickle, name) in [
        (&b"cos\nsystem\n(X\x05\0\0\0falsetR."[..], "`os.system`"),
        (b"cposix\nsystem\n.", "`posix.system`"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "`builtins.eval`"),
        (
            b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93.",
            "`builtins.exec`",
        ),
        (
            b"cbuiltins\ngetattr\n(ctorch\nload\nS'x'\ntR.",
            "`builtins.getattr`",
        ),
        (b"c__main__\nNet\n)\x81}b.", "`__main__.Net`"),
        (b"ctorch.hub\nload\n.", "`torch.hub.load`"),
        (
            b"ctorch.storage\n_load_from_bytes\n(C\x00tR.",
            "a storage by itself",
        ),
        (b"(ios\nsystem\n.", "`os.system`"),
        (b"(cos\nsystem\no.", "`os.system`"),
        (b"\x82\x01.", "the instruction 0x82"),
        (b"\x80\x04\x8f.", "a set, which Kiln does not have"),
    ] {
        let text = message(read(pickle, &[]));
        assert!(text.contains(name), "{name}: {text}");
    }
}

#[test]
fn functions_take_what_they_take_in_pytorch() {
    for pickle in [
        // Calls of results and of classes, with too few and too many arguments.
        &b"ccollections\nOrderedDict\n)R)R."[..],
        b"ctorch\nSize\n)R.",
        b"ctorch\nfloat32\n)R.",
        b"ctorch\nFloatStorage\n)R.",
        b"ctorch._utils\n_rebuild_tensor_v2\n)R.",
        b"ctorch._utils\n_rebuild_parameter\n(NNNtR.",
        b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._tensor\n_rebuild_from_type_v2\nctorch\nTensor\n)NtR.",
        b"c_codecs\nencode\n(X\x01\0\0\0aX\x05\0\0\0rot13tR.",
        b"N)R.",
        b"ccollections\nOrderedDict\nNR.",
        b"K\x01}b.",
        b"ctorch\nSize\n.",
        b"(X\x07\0\0\0storagetQ.",
        b"NQ.",
        // Instructions without the operands that they need.
        b".", b"t.", b"R.", b"h\x05.", b"a.", b"K\x01K\x02\x87.", b"(0.", b"K\x01(a.", b"}K\x01u.", b"q\0.", b"",
        b"\x80\x09.", b"\x95\xff\xff\xff\xff\xff\xff\xff\xffN", b"X\xff\xff\xff\xffab", b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffab",
        b"\x8b\xff\xff\xff\x7fab", b"\x8a\x11aaaaaaaaaaaaaaaaa.", b"I1e5\n.", b"Fx\n.", b"V\\u12\n.", b"S'\\x00'\n.",
        b"X\x01\0\0\0\xff.", b"g5\n.", b"gx\n.", b"}(Nu.", b"(.",
    ] {
        let Err(e) = read(pickle, &[]) else {
            panic!("{} must be refused", pickle.escape_ascii());
        };
        let text = e.to_string();
        assert!(text.contains("x/data.pkl: ") || text.contains("the object"), "{}: {text}", pickle.escape_ascii());
    }
    // Protocol 0's text for a few values.
    let value = read(
        b"(lp0\nI5\naL7L\naF1.5\naV\\u00fc\\U0001f600x\naS'a'\naI01\na(dp1\nS'k'\nNsa.",
        &[],
    );
    assert_eq!(
        format!("{:?}", value.expect("legal")),
        "[5, 7, 1.5, \"ü😀x\", \"a\", True, {\"k\": None}]"
    );
}

#[test]
fn what_is_endless_or_too_large_is_refused() {
    // A list that contains itself, directly and by a detour.
    assert!(message(read(b"]q\0h\0a.", &[])).contains("0: it holds itself"));
    assert!(message(read(b"]q\0(h\0ta.", &[])).contains("0.0: it holds itself"));
    // Deep nesting does not overflow the stack.
    let deep = [&b"]".repeat(100_000)[..], &b"a".repeat(99_999), b"."].concat();
    assert!(message(read(&deep, &[])).contains("nested more than 200 levels deep"));
    // Each list holds the one before ten times: 10^9 values in few bytes.
    let mut laughs = b"]q\0".to_vec();
    for i in 1..=9u8 {
        laughs.extend([&b"]("[..], &[b'h', i - 1].repeat(10), &[b'e', b'q', i]].concat());
    }
    laughs.push(b'.');
    assert!(message(read(&laughs, &[])).contains("values"));
    // Too many objects, and memo entries at any place.
    let many = [&b"("[..], &b"N".repeat(5 << 20), b"t."].concat();
    assert!(message(read(&many, &[])).contains("objects"));
    let memo = read(b"Nr\xff\xff\xff\xffj\xff\xff\xff\xff\x85.", &[]);
    assert_eq!(format!("{:?}", memo.expect("legal")), "(None,)");
}

#[test]
fn tensors_lie_in_their_storages() {
    let four = [0; 16];
    let good = tensor(b"K\x04", b"K\x00", b"K\x02K\x02\x86", b"K\x02K\x01\x86");
    assert!(read(&good, &[&four]).is_ok());
    let huge = b"\x8a\x08\0\0\0\0\0\0\0\x40";
    let two_huge = [&huge[..], huge, b"\x86"].concat();
    for bad in [
        tensor(b"K\x04", b"K\x01", b"K\x02K\x02\x86", b"K\x02K\x01\x86"),
        tensor(b"K\x04", b"K\x00", b"K\x02K\x02\x86", b"K\x03K\x01\x86"),
        tensor(b"K\x04", b"K\x00", b"K\x05\x85", b"K\x01\x85"),
        tensor(b"K\x04", b"K\x00", b"K\x02\x85", b"K\x01K\x01\x86"),
        tensor(b"K\x04", b"K\x00", b"J\xff\xff\xff\xff\x85", b"K\x01\x85"),
        tensor(b"K\x04", b"K\x00", b"K\x02\x85", b"J\xff\xff\xff\xff\x85"),
        tensor(b"K\x04", huge, b"K\x01\x85", b"K\x01\x85"),
        tensor(b"K\x04", b"K\x00", &two_huge, &two_huge),
        tensor(b"K\x04", b"K\x00", &two_huge, b"K\x00K\x00\x86"),
        tensor(
            b"K\x04",
            b"K\x00",
            b"\x8a\x06\0\0\0\0\0\x01\x85",
            b"K\x00\x85",
        ),
        // Larger and smaller than the archive's storage.
        tensor(b"K\x05", b"K\x00", b"K\x04\x85", b"K\x01\x85"),
        tensor(b"K\x03", b"K\x00", b"K\x03\x85", b"K\x01\x85"),
        tensor(huge, b"K\x00", b"K\x03\x85", b"K\x01\x85"),
        tensor(
            b"\x8a\x06\0\0\0\0\0\x01",
            b"K\x00",
            b"K\x03\x85",
            b"K\x01\x85",
        ),
    ] {
        assert!(read(&bad, &[&four]).is_err(), "{}", bad.escape_ascii());
    }
    assert!(message(read(&good, &[])).contains("there is no `x/data/0` in the archive"));
}

#[test]
fn compressed_storages_are_no_bombs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pt");
    let zeros = vec![0; 600 << 20];
    let elements = [b"\x8a\x08", &(zeros.len() as u64 / 4).to_le_bytes()[..]].concat();
    let whole = [&elements[..], b"\x85"].concat();
    let pickle = tensor(&elements, b"K\x00", &whole, b"K\x01\x85");
    write(&path, &pickle, &[&zeros], true);
    assert!(message(load(&path)).contains("bytes, of which the file has"));
}

#[test]
fn long_keys_that_are_named_often_are_kept_once() {
    let key = [&b"X\0\0\x10\0"[..], &b"k".repeat(1 << 20)].concat();
    // A dict of one tensor under a long key, in a list again and again.
    let one = tensor(b"K\x01", b"K\x00", b"K\x01\x85", b"K\x01\x85");
    let one = &one[2..one.len() - 1];
    let dict = [&b"\x80\x02}"[..], &key, one, b"sq\x07"].concat();
    let many = [&dict[..], b"](", &b"h\x07".repeat(1000), b"e."].concat();
    let value = read(&many, &[&[0; 4]]).expect("each of them is the same dict");
    let found = message(value.tensors());
    assert!(found.contains("paths within it take more than"), "{found}");
    // An error names the key in short.
    let refused = [&b"\x80\x02}"[..], &key, b"ctorch\ncomplex64\ns."].concat();
    let found = message(read(&refused, &[]));
    assert!(
        found.len() < 1000 && found.contains("kkk: a complex tensor"),
        "{found}"
    );
    // Names and keys of storages are copied, so they are short.
    let named = [&b"\x80\x02"[..], &key, b"q\0h\0\x93."].concat();
    assert!(message(read(&named, &[])).contains("a name of 2097152 bytes; at most 255"));
    let stored = [
        &b"\x80\x02(X\x07\0\0\0storagectorch\nFloatStorage\n"[..],
        &key,
    ]
    .concat();
    let stored = [&stored[..], b"X\x03\0\0\0cpuK\x01tQ."].concat();
    assert!(message(read(&stored, &[])).contains("a key of 1048576 bytes; at most 255"));
    // A long tuple is not a shape, and counts each time that it is copied.
    let long = [&b"("[..], &b"K\x01".repeat(1 << 17), b"tq\x05"].concat();
    let shape = [
        &b"\x80\x02"[..],
        &long,
        &tensor(b"K\x01", b"K\x00", b"h\x05", b"h\x05")[2..],
    ];
    assert!(message(read(&shape.concat(), &[])).contains("sizes of 131072 dims"));
    let module = [
        &b"\x80\x02X\x06\0\0\0module"[..],
        &long,
        b"\x86q\x06](",
        &b"h\x06Q".repeat(20),
    ];
    let module = [&module.concat()[..], b"e."].concat();
    assert!(message(read(&module, &[])).contains("far more of its contents"));
    // A long text that a function returns counts each time.
    let devices = [
        &b"\x80\x02"[..],
        &key,
        b"\x85q\0ctorch\ndevice\nq\x01](",
        &b"h\x01h\0R".repeat(20),
    ];
    let devices = [&devices.concat()[..], b"e."].concat();
    assert!(message(read(&devices, &[])).contains("far more of its contents"));
}

#[test]
fn damage_is_an_error_or_changes_nothing() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pt");
    let mut rng = fastrand::Rng::with_seed(7);
    let count = std::env::var("KILN_DAMAGES").map_or(400, |n| n.parse().expect("a number"));
    for name in [
        "zip.pt",
        "no_checksum.pt",
        "legacy.pt",
        "tar.pt",
        "compressed.pt",
        "zip.safetensors",
    ] {
        let whole = std::fs::read(fixture(name)).expect("the fixture");
        let wanted = load(fixture(name))?.tensors()?;
        let (mut refused, mut same) = (0, 0);
        for _ in 0..count {
            let mut bytes = whole.clone();
            match rng.u8(..4) {
                0 => bytes.truncate(rng.usize(..whole.len())),
                1 => {
                    let at = rng.usize(..bytes.len());
                    bytes.splice(
                        at..at,
                        std::iter::repeat_with(|| rng.u8(..))
                            .take(4)
                            .collect::<Vec<_>>(),
                    );
                }
                _ => {
                    for _ in 0..rng.usize(1..4) {
                        let at = rng.usize(..bytes.len());
                        bytes[at] = rng.u8(..);
                    }
                }
            }
            std::fs::write(&path, &bytes).expect("it can be written");
            let Ok(found) = load(&path).and_then(|v| v.tensors()) else {
                refused += 1;
                continue;
            };
            // Checksums cover all of the zip form, except where there are none.
            if name == "zip.pt" || name == "compressed.pt" {
                for (key, t) in found.iter() {
                    let wanted = wanted.get(key).expect("a name that was there");
                    assert_eq!(t.to_bytes()?, wanted.to_bytes()?, "{key}");
                }
                same += 1;
            }
        }
        assert!(
            refused > count / 10,
            "{name}: {refused} refused, {same} the same"
        );
    }
    Ok(())
}

#[test]
fn random_bytes_are_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pt");
    let mut rng = fastrand::Rng::with_seed(3);
    for start in [
        &b"PK\x03\x04"[..],
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
        b"\xff\0\0\0\0\0\0\0{",
        b"{",
        b"",
    ] {
        for _ in 0..100 {
            let mut bytes = start.to_vec();
            bytes.extend(std::iter::repeat_with(|| rng.u8(..)).take(300));
            std::fs::write(&path, &bytes).expect("it can be written");
            assert!(load(&path).is_err());
        }
    }
    // Random programs for the pickle's machine.
    let ops = b"(0N\x88\x89]})a.esutRbQ\x81\x85\x86\x87\x94h\0q\0K\x05";
    for _ in 0..300 {
        let mut pickle: Vec<u8> = b"]q\0}q\x01ctorch\nSize\nq\x02".to_vec();
        pickle.extend((0..rng.usize(1..60)).map(|_| ops[rng.usize(..ops.len())]));
        pickle.push(b'.');
        let _ = read(&pickle, &[]);
    }
}
