//! Pickles that are not checkpoints; `pickles/fixtures.py` wrote some of them.

use crate::message;
use kiln_formats::{Value, load, read_pickle};
use kiln_tensor::{DType, Result};

fn fixture(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/formats/pickles")
        .join(name)
}

#[test]
fn arrays_of_every_protocol_are_tensors() -> Result<()> {
    for protocol in 2..=5 {
        let value = read_pickle(fixture(&format!("protocol{protocol}.pkl")))?;
        let tensor = |name: &str| value.get(name).and_then(Value::tensor).cloned();
        let found = tensor("u8")?;
        let wanted: Vec<u8> = (0..600).map(|i| (i * 7 % 256) as u8).collect();
        assert_eq!(
            (found.shape()?, found.to_vec::<u8>()?),
            (vec![2, 300], wanted)
        );
        let scalar = tensor("scalar")?;
        assert_eq!((scalar.shape()?, scalar.item::<i32>()?), (vec![], -5));
        let empty = tensor("empty")?;
        assert_eq!((empty.shape()?, empty.dtype()), (vec![0, 3], DType::F64));
        let bits: Vec<u32> = tensor("f32")?
            .to_vec::<f32>()?
            .iter()
            .map(|x| x.to_bits())
            .collect();
        assert_eq!(bits, [0x3fc0_0000, 0x8000_0000, 0x7f80_0000, 2]);
        assert_eq!(tensor("bools")?.to_vec::<bool>()?, [true, false, true]);
        assert_eq!(tensor("i64")?.to_vec::<i64>()?, [-(1 << 62), 1]);
        assert_eq!(tensor("column")?.to_vec::<i16>()?, [1, 2]);
        let labels: Result<Vec<i64>> = value
            .get("labels")?
            .list()?
            .iter()
            .map(Value::int)
            .collect();
        assert_eq!(labels?, [3, 1, 2]);
        assert_eq!(value.get("names")?.list()?[1].str()?, "dog");
        let Value::Bytes(raw) = value.get("raw")? else {
            panic!("bytes are bytes")
        };
        assert!(raw.iter().copied().eq(0..=255));
    }
    Ok(())
}

#[test]
fn what_is_no_array_of_numbers_is_refused_by_name() {
    for (name, wanted) in [
        ("objects", "dtype \"O8\""),
        ("complex", "dtype \"c8\""),
        ("big_endian", "big-endian"),
        ("columns", "ascontiguousarray"),
        ("record", "dtype \"V4\""),
        ("date", "dtype \"M8\""),
        ("scalar", "scalar`, and loading that would run code"),
    ] {
        let error = message(read_pickle(fixture(&format!("refused_{name}.pkl"))));
        assert!(error.contains(wanted), "{error}");
    }
    // Checkpoints hold no arrays: torch.load refuses them as well.
    assert!(message(load(fixture("protocol4.pkl"))).contains("torch.save"));
}

fn read(pickle: &[u8]) -> Result<Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pkl");
    std::fs::write(&path, pickle).expect("it can be written");
    read_pickle(path)
}

#[test]
fn texts_of_python_2_are_texts_or_bytes() -> Result<()> {
    assert_eq!(read(b"\x80\x02U\x03cat.")?.str()?, "cat");
    let Value::Bytes(bytes) = read(b"\x80\x02T\x02\0\0\0\xff\xfe.")? else {
        panic!("these are bytes")
    };
    assert_eq!(*bytes, [0xff, 0xfe]);
    Ok(())
}

#[test]
fn nothing_is_run_and_memory_is_bounded() {
    let array = |shape: &[u8], bytes: &[u8]| {
        let mut all = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01".to_vec();
        all.extend(shape);
        all.extend(b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R\x89");
        all.extend(bytes);
        all.extend(b"tb.");
        all
    };
    assert!(read(&array(b"K\x02\x85", b"U\x02ab")).is_ok());
    let mut copies = b"\x80\x02(X\x00\x00\x08\x00".to_vec();
    copies.extend(vec![b'a'; 1 << 19]);
    copies.extend(b"q\x00ccollections\nOrderedDict\nq\x01c_codecs\nencode\nq\x02");
    copies.extend(b"h\x02h\x00U\x06latin1\x86R".repeat(1000));
    let mut entries = b"\x80\x02((".to_vec();
    entries.extend(b"K\x01K\x02".repeat(100_000));
    entries.extend(b"dq\x00ccollections\nOrderedDict\nq\x01");
    entries.extend(b"h\x01h\x00\x85R".repeat(1000));
    for (pickle, wanted) in [
        (&b"cos\nsystem\n(S'true'\ntR."[..], "`os.system`"),
        (b"cnumpy\nsave\n.", "`numpy.save`"),
        (b"ctorch\nfloat32\n.", "`torch.float32`"),
        (b"S'x'\nQ.", "outside of the pickle"),
        (b"cnumpy\nndarray\n)R.", "a call of"),
        (&array(b"K\x03\x85", b"U\x02ab"), "shape [3] has 2 bytes"),
        (&array(b"J\xff\xff\xff\xff\x85", b"U\x02ab"), "a size"),
        (
            &array(
                b"\x8a\x08\0\0\0\0\0\0\0\x40\x8a\x08\0\0\0\0\0\0\0\x40\x86",
                b"U\x02ab",
            ),
            "shape",
        ),
        (
            &array(b"K\x02\x85", b"T\xff\xff\xff\x7fab"),
            "takes 2147483647 bytes",
        ),
        (
            &array(b"K\x02\x85", b"K\x07"),
            "elements that are an integer",
        ),
        (&[&copies[..], b"t."].concat(), "far more of its contents"),
        (&[&entries[..], b"t."].concat(), "far more of its contents"),
    ] {
        let error = message(read(pickle));
        assert!(error.contains(wanted), "{error}");
    }
}
