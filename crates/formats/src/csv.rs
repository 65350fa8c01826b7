//! Tables in CSV files.

use crate::fault::Fault;
use csv::{ErrorKind, Position, ReaderBuilder, StringRecord};
use flate2::bufread::MultiGzDecoder;
use half::{bf16, f16};
use kiln_tensor::memory::Budget;
use kiln_tensor::{Element, Error, Result, Tensor, options};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::panic::Location;
use std::path::Path;

options! {
    /// Options for reading a CSV file.
    CsvOptions () {
        /// The separator of fields (default a comma).
        delimiter: u8 = b',',
        /// True if the first line names the columns (default yes). Without names, columns are called `0`, `1`, …
        has_headers: bool = true,
        /// True if blanks around fields are dropped (default no: they are kept).
        trim: bool = false,
    }
}

/// The fields of a CSV file as text, with their lines for messages.
///
/// ```
/// use kiln_formats::{CsvOptions, CsvTable};
///
/// let text = "width,height,kind\n1.5,2,iris\n3,4.25,rose\n";
/// let table = CsvTable::from_reader(text.as_bytes(), &CsvOptions::default())?;
/// assert_eq!(table.tensor::<f32>(["width", "height"])?.to_vec::<f32>()?, [1.5, 2.0, 3.0, 4.25]);
/// assert_eq!(table.column::<String>("kind")?, ["iris", "rose"]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CsvTable {
    /// The origin of the table, for messages.
    source: String,
    headers: Vec<String>,
    /// The number of each column by name.
    columns: HashMap<String, usize>,
    rows: Vec<StringRecord>,
}

impl CsvTable {
    /// Reads a file whose first line names the columns. It may be compressed with gzip.
    ///
    /// # Errors
    /// If the file can't be read, two columns have one name, a line has more or fewer fields than the first,
    /// or is not UTF-8; or if the table takes more memory than the limit leaves
    /// ([`Device::set_memory_limit`](kiln_tensor::Device::set_memory_limit)).
    #[track_caller]
    pub fn read(path: impl AsRef<Path>) -> Result<CsvTable> {
        CsvTable::read_with(path, &CsvOptions::default())
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`CsvTable::read`].
    #[track_caller]
    pub fn read_with(path: impl AsRef<Path>, options: &CsvOptions) -> Result<CsvTable> {
        let (path, loc) = (path.as_ref(), Location::caller());
        let file = unpacked(path).map_err(Fault::from);
        let table = file.and_then(|file| parse(file, path.display().to_string(), options));
        table.map_err(|fault| fault.in_file("CsvTable::read", path, loc))
    }

    /// Reads from any reader, such as memory, a decompressor or a socket.
    ///
    /// # Errors
    /// As [`CsvTable::read`].
    #[track_caller]
    pub fn from_reader(reader: impl Read, options: &CsvOptions) -> Result<CsvTable> {
        let loc = Location::caller();
        let table = parse(reader, "the table".to_string(), options);
        table.map_err(|fault| fault.at("CsvTable::from_reader", loc))
    }

    /// The names of the columns.
    pub fn headers(&self) -> &[String] {
        &self.headers
    }

    /// The number of rows, without the line of names.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// True if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The values of a column.
    ///
    /// # Errors
    /// If there is no such column, or a field is not a `T`; the message names its line and column.
    #[track_caller]
    pub fn column<T: Field>(&self, name: &str) -> Result<Vec<T>> {
        let loc = Location::caller();
        let fault = |fault: Fault| self.error("CsvTable::column", fault, loc);
        let column = self.position(name).map_err(fault)?;
        let fields = self.rows.iter().map(|row| self.field(row, column));
        fields.collect::<Result<_, _>>().map_err(fault)
    }

    /// The values of some columns as a tensor of shape `[rows, columns]`.
    ///
    /// # Errors
    /// As [`CsvTable::column`].
    #[track_caller]
    pub fn tensor<T: Field + Element>(
        &self,
        columns: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Tensor> {
        let loc = Location::caller();
        let fault = |fault: Fault| self.error("CsvTable::tensor", fault, loc);
        let columns = columns.into_iter();
        let columns: Result<Vec<usize>, _> = columns.map(|c| self.position(c.as_ref())).collect();
        let columns = columns.map_err(fault)?;
        let fields = self.rows.iter();
        let fields = fields.flat_map(|row| columns.iter().map(|c| self.field::<T>(row, *c)));
        let values: Vec<T> = fields.collect::<Result<_, _>>().map_err(fault)?;
        Ok(Tensor::from_slice(&values, [self.len(), columns.len()]))
    }

    fn position(&self, name: &str) -> Result<usize, Fault> {
        let index = self.columns.get(name).copied();
        index.ok_or_else(|| {
            const SHOWN: usize = 50;
            let mut names = self.headers[..self.headers.len().min(SHOWN)].join(", ");
            if let Some(hidden) = self.headers.len().checked_sub(SHOWN + 1) {
                names += &format!(" and {} more", hidden + 1);
            }
            Fault::from(format!(
                "there is no column {name:?}; the columns are {names}"
            ))
        })
    }

    fn field<T: Field>(&self, row: &StringRecord, column: usize) -> Result<T, Fault> {
        // Every row has the same number of fields as the headers.
        let text = row.get(column).unwrap_or_default();
        T::parse(text).ok_or_else(|| {
            let (line, name) = (
                row.position().map_or(0, Position::line),
                &self.headers[column],
            );
            let what = T::WHAT;
            let message = format!("line {line}, column {name:?}: {text:?} is not {what}");
            Fault::from(message)
        })
    }

    fn error(&self, op: &str, fault: Fault, loc: &'static Location<'static>) -> Error {
        fault.within(&self.source).at(op, loc)
    }
}

fn parse(reader: impl Read, source: String, options: &CsvOptions) -> Result<CsvTable, Fault> {
    let trim = if options.trim {
        csv::Trim::All
    } else {
        csv::Trim::None
    };
    let reader = Metered {
        reader,
        delimiter: options.delimiter,
        budget: Budget::new(),
    };
    let mut reader = ReaderBuilder::new()
        .delimiter(options.delimiter)
        .has_headers(options.has_headers)
        .trim(trim)
        .from_reader(reader);
    let headers = reader.headers().map_err(fault)?.clone();
    let headers: Vec<String> = match options.has_headers {
        true => headers.iter().map(String::from).collect(),
        false => (0..headers.len()).map(|n| n.to_string()).collect(),
    };
    let mut columns = HashMap::new();
    for (n, name) in headers.iter().enumerate() {
        if let Some(earlier) = columns.insert(name.clone(), n) {
            let message = format!(
                "columns {} and {} are both named {name:?}",
                earlier + 1,
                n + 1
            );
            return Err(Fault::from(message));
        }
    }
    let rows: Result<Vec<StringRecord>, _> = reader.records().collect();
    Ok(CsvTable {
        source,
        headers,
        columns,
        rows: rows.map_err(fault)?,
    })
}

/// Opens a file for reading, decompressed if it is compressed by gzip.
fn unpacked(path: &Path) -> io::Result<Box<dyn Read>> {
    let mut file = BufReader::new(File::open(path)?);
    Ok(match file.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(file)),
        _ => Box::new(file),
    })
}

/// A reader of text that spends the memory which its table takes. The size of compressed text is not known before.
struct Metered<R> {
    reader: R,
    delimiter: u8,
    budget: Budget,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        /// Bytes of a character, in a buffer and in its row; of a field, and of a row, besides their text.
        const BYTES: [u64; 3] = [2, 16, 200];
        let len = self.reader.read(to)?;
        let count = |byte: u8| to[..len].iter().filter(|c| **c == byte).count() as u64;
        let counts = [
            len as u64,
            count(self.delimiter),
            count(b'\n') + count(b'\r'),
        ];
        let bytes = counts.iter().zip(BYTES).map(|(count, bytes)| count * bytes);
        self.budget.spend(bytes.sum(), "a part of the table")?;
        Ok(len)
    }
}

fn fault(e: csv::Error) -> Fault {
    let line = |pos: &Option<Position>| pos.as_ref().map_or(0, Position::line);
    match e.kind() {
        ErrorKind::Io(e) => Fault::from(e),
        ErrorKind::UnequalLengths {
            pos,
            expected_len,
            len,
        } => Fault::from(format!(
            "line {} has {len} fields, the first has {expected_len}",
            line(pos)
        )),
        ErrorKind::Utf8 { pos, err } => {
            let (line, field) = (line(pos), err.field() + 1);
            Fault::from(format!("line {line}, field {field} is not UTF-8"))
        }
        _ => Fault::from(e.to_string()),
    }
}

/// A type that a field of a table can be read as: numbers, `bool` (`true`, `false`, `1`, `0`), `String`, and an
/// `Option` of those, which is `None` for an empty field.
pub trait Field: Sized {
    /// The name of the type in messages.
    const WHAT: &'static str;

    /// Parses a field; `None` if it is not of this type.
    fn parse(text: &str) -> Option<Self>;
}

macro_rules! numbers {
    ($($t:ty: $what:literal),*) => {$(
        impl Field for $t {
            const WHAT: &'static str = $what;
            fn parse(text: &str) -> Option<$t> {
                text.parse().ok()
            }
        }
    )*};
}
numbers!(
    u8: "a u8", i8: "an i8", i16: "an i16", i32: "an i32", i64: "an i64", u16: "a u16", u32: "a u32",
    u64: "a u64", usize: "an index", f16: "an f16", bf16: "a bf16", f32: "an f32", f64: "an f64",
    String: "text"
);

impl Field for bool {
    const WHAT: &'static str = "true, false, 1 or 0";
    fn parse(text: &str) -> Option<bool> {
        match text {
            "1" => Some(true),
            "0" => Some(false),
            _ if text.eq_ignore_ascii_case("true") => Some(true),
            _ if text.eq_ignore_ascii_case("false") => Some(false),
            _ => None,
        }
    }
}

impl<T: Field> Field for Option<T> {
    const WHAT: &'static str = T::WHAT;
    fn parse(text: &str) -> Option<Option<T>> {
        match text {
            "" => Some(None),
            _ => T::parse(text).map(Some),
        }
    }
}
