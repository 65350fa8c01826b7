use crate::message;
use kiln_formats::{CsvOptions, CsvTable};
use kiln_tensor::{DType, ErrorKind, Result};

fn table(text: &str) -> Result<CsvTable> {
    CsvTable::from_reader(text.as_bytes(), &CsvOptions::default())
}

#[test]
fn columns_are_read_by_name() -> Result<()> {
    let t = table("id,x,ok,note\n1,2.5,true,\"a, b\"\r\n-2,nan,0,\n")?;
    assert_eq!((t.len(), t.is_empty(), t.headers().len()), (2, false, 4));
    assert_eq!(t.column::<i64>("id")?, [1, -2]);
    assert_eq!(t.column::<bool>("ok")?, [true, false]);
    assert_eq!(t.column::<String>("note")?, ["a, b", ""]);
    assert_eq!(
        t.column::<Option<String>>("note")?,
        [Some("a, b".to_string()), None]
    );
    let x = t.tensor::<f32>(["x", "id"])?;
    assert_eq!((x.dtype(), x.shape()?), (DType::F32, vec![2, 2]));
    let x = x.to_vec::<f32>()?;
    assert!(x[2].is_nan() && [x[0], x[1], x[3]] == [2.5, 1.0, -2.0]);
    let none = table("a,b\n")?;
    assert_eq!(none.tensor::<f64>(["b", "a"])?.shape()?, [0, 2]);
    Ok(())
}

#[test]
fn options_change_how_a_file_is_read() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.csv");
    std::fs::write(&path, "1; 2\n3 ;4\n").unwrap();
    let options = CsvOptions::new()
        .delimiter(b';')
        .has_headers(false)
        .trim(true);
    let t = CsvTable::read_with(&path, &options)?;
    assert_eq!(t.headers(), ["0", "1"]);
    assert_eq!(t.tensor::<i32>(["0", "1"])?.to_vec::<i32>()?, [1, 2, 3, 4]);
    let found = message(t.column::<i32>("2"));
    assert!(
        found.contains(r#"x.csv: there is no column "2"; the columns are 0, 1"#),
        "{found}"
    );
    let missing = CsvTable::read(folder.path().join("y.csv")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Io);
    assert!(missing.message().contains("y.csv"), "{missing}");
    Ok(())
}

#[test]
fn a_compressed_file_is_read_by_its_content() -> Result<()> {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), Default::default());
    packed.write_all(b"a,b\n1,2\n3,4\n").unwrap();
    let packed = packed.finish().unwrap();
    for name in ["x.csv.gz", "x.csv"] {
        std::fs::write(folder.path().join(name), &packed).unwrap();
        let table = CsvTable::read(folder.path().join(name))?;
        assert_eq!(table.column::<i64>("b")?, [2, 4]);
    }
    std::fs::write(folder.path().join("y.csv.gz"), &packed[..packed.len() - 9]).unwrap();
    assert!(CsvTable::read(folder.path().join("y.csv.gz")).is_err());
    Ok(())
}

/// Each name is looked up, not searched for.
#[test]
fn a_wide_table_is_read_at_once() -> Result<()> {
    let row = |n: &str| (0..100_000).map(|i| format!("{n}{i}")).collect::<Vec<_>>();
    let names = row("c");
    let wide = table(&format!("{}\n{}\n", names.join(","), row("").join(",")))?;
    let numbers = wide.tensor::<f32>(&names)?.to_vec::<f32>()?;
    assert_eq!(numbers[99_999], 99_999.0);
    let found = message(wide.column::<u8>("d"));
    assert!(
        found.len() < 1000 && found.contains("c49 and 99950 more"),
        "{found}"
    );
    Ok(())
}

#[test]
fn what_is_wrong_is_named_by_line_and_column() -> Result<()> {
    let t = table("name,age\nAnn,31\n\"two\nlines\",40\nBob,old\nEve,\n")?;
    let found = message(t.column::<u8>("age"));
    assert!(
        found.contains(r#"line 5, column "age": "old" is not a u8"#),
        "{found}"
    );
    assert!(found.contains("tables.rs"), "{found}");
    let found = message(t.tensor::<f32>(["age"]));
    assert!(
        found.contains(r#"line 5, column "age": "old" is not an f32"#),
        "{found}"
    );
    let found = message(t.column::<Option<f64>>("name"));
    assert!(
        found.contains(r#"line 2, column "name": "Ann" is not an f64"#),
        "{found}"
    );
    let empty = table("age\n1\n\"\"\n")?;
    let found = message(empty.column::<u8>("age"));
    assert!(
        found.contains(r#"line 3, column "age": "" is not a u8"#),
        "{found}"
    );
    let found = message(table("a,b\n1,2\n3\n"));
    assert!(
        found.contains("line 3 has 1 fields, the first has 2"),
        "{found}"
    );
    let latin = CsvTable::from_reader(&b"a,b\n1,\xff\n"[..], &CsvOptions::default());
    let found = message(latin);
    assert!(found.contains("line 2, field 2 is not UTF-8"), "{found}");
    Ok(())
}

#[test]
fn columns_of_one_name_are_refused() {
    let text = |text: &str| message(table(text).map(drop));
    assert!(text("a,b,a\n1,2,3\n").contains("columns 1 and 3 are both named \"a\""));
    assert!(text("a,,\n1,2,3\n").contains("columns 2 and 3 are both named \"\""));
    assert!(table("a,A,a \n1,2,3\n").is_ok());
}
