use crate::message;
use kiln_data::Rng;
use kiln_formats::{npy_from_bytes, npy_to_bytes, read_npy, write_npy};
use kiln_tensor::{DType, ErrorKind, Result, Tensor};

/// A file with this header.
fn file(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    match version {
        1 => bytes.extend((header.len() as u16).to_le_bytes()),
        _ => bytes.extend((header.len() as u32).to_le_bytes()),
    }
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

fn header(descr: &str, fortran: &str, shape: &str) -> String {
    format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n")
}

#[test]
fn what_is_written_is_what_numpy_writes() -> Result<()> {
    // [[1, 2, 3]] as little-endian 16-bit integers, by the description of the format.
    let mut want = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    want.extend(b"{'descr': '<i2', 'fortran_order': False, 'shape': (1, 3), }");
    want.resize(127, b' ');
    want.extend(b"\n\x01\x00\x02\x00\x03\x00");
    let x = Tensor::from([[1i16, 2, 3]]);
    assert_eq!(npy_to_bytes(&x)?, want);
    let shape = |x: &Tensor| -> Result<String> {
        let bytes = npy_to_bytes(x)?;
        assert_eq!((bytes.len() - x.nbytes()?) % 64, 0);
        Ok(String::from_utf8_lossy(&bytes[10..]).into_owned())
    };
    assert!(
        shape(&Tensor::scalar(1.0f64))?.contains("'<f8', 'fortran_order': False, 'shape': (), }")
    );
    assert!(
        shape(&Tensor::from([true]))?.contains("'|b1', 'fortran_order': False, 'shape': (1,), }")
    );
    Ok(())
}

/// True for NumPy's own dtypes.
fn has_code(dtype: DType) -> bool {
    dtype != DType::BF16 && dtype.float8().is_none()
}

#[test]
fn every_dtype_and_shape_survives() -> Result<()> {
    for dtype in DType::ALL {
        for shape in [vec![], vec![0], vec![7], vec![3, 0, 2], vec![2, 3, 5]] {
            let n = shape.iter().product::<usize>() as i64;
            let x = Tensor::arange(0, n, 1)
                .remainder(2)
                .to_dtype(dtype)
                .reshape(shape.iter().map(|d| *d as i64).collect::<Vec<_>>());
            if !has_code(dtype) {
                let e = npy_to_bytes(&x).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Unsupported);
                assert!(
                    e.message().contains(&format!("NumPy has no {dtype}")),
                    "{e}"
                );
                continue;
            }
            let y = npy_from_bytes(&npy_to_bytes(&x)?)?;
            assert_eq!((y.dtype(), y.shape()?), (dtype, shape));
            assert_eq!(y.to_bytes()?, x.to_bytes()?);
        }
    }
    let odd = [f32::NAN, f32::NEG_INFINITY, -0.0, f32::MIN_POSITIVE / 2.0];
    let back = npy_from_bytes(&npy_to_bytes(&Tensor::from(odd))?)?.to_vec::<f32>()?;
    assert_eq!(back.map_bits(), odd.to_vec().map_bits());
    Ok(())
}

trait Bits {
    fn map_bits(self) -> Vec<u32>;
}
impl Bits for Vec<f32> {
    fn map_bits(self) -> Vec<u32> {
        self.into_iter().map(f32::to_bits).collect()
    }
}

#[test]
fn big_endian_and_fortran_order_are_converted() -> Result<()> {
    let big = file(
        1,
        &header(">f4", "False", "(2,)"),
        &[0x3f, 0x80, 0, 0, 0xc0, 0, 0, 0],
    );
    assert_eq!(npy_from_bytes(&big)?.to_vec::<f32>()?, [1.0, -2.0]);
    let big = file(1, &header(">i8", "False", "()"), &[0, 0, 0, 0, 0, 0, 1, 2]);
    assert_eq!(npy_from_bytes(&big)?.item::<i64>()?, 258);
    for dtype in DType::ALL.into_iter().filter(|d| has_code(*d)) {
        // Element (i, j, k) is 1 where it comes first or last in C order.
        let (mut c, mut f) = (vec![0i64; 30], vec![0i64; 30]);
        for (i, j, k) in [(0, 0, 1), (1, 2, 4), (1, 0, 3)] {
            c[i * 15 + j * 5 + k] = 1;
            f[i + j * 2 + k * 6] = 1;
        }
        let ordered = |v: &[i64]| Tensor::from(v).to_dtype(dtype).to_bytes();
        let written = npy_to_bytes(&Tensor::zeros([1], dtype))?;
        let text = String::from_utf8_lossy(&written[10..]).into_owned();
        let descr = text.split('\'').nth(3).unwrap();
        let bytes = file(2, &header(descr, "True", "(2, 3, 5)"), &ordered(&f)?);
        let read = npy_from_bytes(&bytes)?;
        assert_eq!((read.dtype(), read.shape()?), (dtype, vec![2, 3, 5]));
        assert_eq!(read.to_bytes()?, ordered(&c)?, "{dtype}");
    }
    Ok(())
}

#[test]
fn headers_of_every_version_and_spelling_are_read() -> Result<()> {
    let data = 5i32.to_le_bytes().repeat(2);
    let spellings = [
        header("<i4", "False", "(2,)"),
        "{\"shape\":(2L,),\"descr\":\"<i4\",\"fortran_order\":False}".to_string(),
        "  { 'fortran_order' : True ,\n'shape':( 2 , ) , 'descr':'=i4' }   ".to_string(),
    ];
    for spelling in &spellings {
        for version in 1..4 {
            let read = npy_from_bytes(&file(version, spelling, &data))?;
            assert_eq!(read.to_vec::<i32>()?, [5, 5]);
        }
    }
    Ok(())
}

#[test]
fn damage_is_named() {
    let f4 = |shape: &str| file(1, &header("<f4", "False", shape), &[0; 8]);
    let text = |text: &str| file(1, text, &[]);
    let mut future = f4("(2,)");
    future[6] = 9;
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (
            vec![],
            "the magic number and the version takes 8 bytes, but the file ends after 0",
        ),
        (b"PK\x03\x04 not npy".to_vec(), "this is not a .npy file"),
        (future, "format 9.0 is not known"),
        (f4("(2,)")[..40].to_vec(), "the header takes"),
        (
            f4("(3,)"),
            "the array takes 12 bytes, but the file ends after 8 of them",
        ),
        (f4("(1,)"), "there are bytes after the array of shape [1]"),
        (f4("(99999999999, 99999999999)"), "can't be addressed"),
        (
            f4("(999999999999999999999999,)"),
            "the size 999999999999999999999999 is too large",
        ),
        (
            f4("(100000000000,)"),
            "the array takes 400000000000 bytes, but the file ends after 8",
        ),
        (f4("(-1,)"), "a size is expected in place of '-'"),
        (f4("2"), "'(' is expected in place of '2'"),
        (f4("(2 2)"), "')' is expected"),
        (
            text("{'descr': '<f4', 'fortran_order': False, }"),
            "the key 'shape' is missing",
        ),
        (
            text("{'descr': '<f4', 'descr': '<f4'}"),
            "the key 'descr' comes twice",
        ),
        (text("{'color': '<f4'}"), "the key 'color' is not known"),
        (text("{'descr': '<f4"), "does not end"),
        (
            text("{'fortran_order': Maybe}"),
            "True or False is expected in place of 'M'",
        ),
        (text("{'descr': '<f4'"), "'}' is expected where it ends"),
        (text("{'descr': '|O'}"), "(Python objects) is not supported"),
        (text("{'descr': '<U3'}"), "(strings) is not supported"),
        (
            text("{'descr': '<c8'}"),
            "(complex numbers) is not supported",
        ),
        (
            text("{'descr': [('x', '<f4')]}"),
            "arrays of records are not supported",
        ),
        (text("{'descr': 'é'}"), "unknown dtype"),
        (
            file(1, &header("|b1", "False", "(1,)"), &[2]),
            "a bool is neither 0 nor 1",
        ),
    ];
    for (bytes, want) in cases {
        let found = message(npy_from_bytes(&bytes));
        assert!(found.contains(want), "{found}\nlacks {want}");
    }
    let mut latin = f4("(2,)");
    latin[12] = 0xff;
    assert!(message(npy_from_bytes(&latin)).contains("the header: invalid utf-8"));
    let endless = b"\x93NUMPY\x02\x00\xff\xff\xff\xff{";
    assert!(message(npy_from_bytes(endless)).contains("the header takes 4294967295 bytes"));
}

#[test]
fn random_damage_never_panics() -> Result<()> {
    let good = npy_to_bytes(&Tensor::arange(0, 12, 1).reshape([3, 4]))?;
    let mut rng = Rng::new(17);
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..1 + rng.below(3) {
            let at = rng.below(80.min(bytes.len()));
            match rng.below(4) {
                0 => bytes[at] = rng.bits() as u8,
                1 => bytes[at] = b"{}(),:' 0123456789TFL<>|"[rng.below(24)],
                2 => drop(bytes.remove(at)),
                _ => bytes.truncate(at),
            }
            if bytes.is_empty() {
                break;
            }
        }
        refused += usize::from(npy_from_bytes(&bytes).is_err());
    }
    assert!(refused > 15_000, "{refused}");
    Ok(())
}

#[test]
fn files_are_replaced_whole() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    write_npy(&path, &Tensor::from([1.0f32, 2.0]))?;
    write_npy(&path, &Tensor::from([3i64]))?;
    assert_eq!(read_npy(&path)?.to_vec::<i64>()?, [3]);
    let bf16 = Tensor::zeros([2], DType::BF16);
    let failed = message(write_npy(&path, &bf16));
    assert!(failed.contains("x.npy: NumPy has no bf16"), "{failed}");
    assert_eq!(read_npy(&path)?.to_vec::<i64>()?, [3], "the old file stays");
    assert_eq!(crate::names(&folder), ["x.npy"], "nothing is left behind");
    let missing = read_npy(folder.path().join("y.npy")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Io);
    assert!(missing.message().contains("y.npy"), "{missing}");
    assert!(missing.loc().file().ends_with("npy.rs"), "{missing}");
    assert_eq!(
        write_npy(folder.path().join("no/z.npy"), &bf16)
            .unwrap_err()
            .kind(),
        ErrorKind::Io
    );
    assert_eq!(write_npy("/", &bf16).unwrap_err().kind(), ErrorKind::Io);
    Ok(())
}
