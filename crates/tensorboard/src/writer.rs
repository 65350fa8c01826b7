//! The writer.

use crate::file::{EventFile, host, now};
use crate::histogram::{Histogram, RawHistogram, histogram};
use crate::image::{self, Figure, Pixels};
use crate::messages::event::What;
use crate::messages::value::Value as ValueContent;
use crate::messages::{
    Dim, PluginData, Summary, SummaryMetadata, TensorProto, TensorShapeProto, Value,
};
use kiln_observe::HealthReport;
use kiln_tensor::profiler::Profile;
use kiln_tensor::{AsTensor, DType, Error, ErrorKind, MaybeInt, Other, Result, Tensor, options};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

options! {
    /// The folder of a [`SummaryWriter`], and the times at which it writes.
    WriterOptions (
        /// The folder; if empty, `runs/DATE_HOST`, with the date in UTC.
        log_dir: PathBuf
    ) {
        /// Appended to the folder's name if that is made from the date.
        comment: String = "",
        /// TensorBoard discards the events of older files of the folder from this step on: those of a run that was
        /// interrupted after its last checkpoint.
        purge_step: MaybeInt = MaybeInt(None),
        /// The maximum number of events that wait to be written.
        max_queue: usize = 10usize,
        /// The seconds after which waiting events are written.
        flush_secs: u64 = 120u64,
        /// Appended to the names of files.
        filename_suffix: String = "",
    }
}

options! {
    /// The options of [`SummaryWriter::add_scalar_with`].
    ScalarStyle () {
        /// True to store a tensor, as TensorFlow 2 does.
        new_style: bool = false,
        /// True to store a tensor of f64 instead of f32.
        double_precision: bool = false,
    }
}

/// Writes event files for TensorBoard, under the names and with the meanings of PyTorch's
/// `torch.utils.tensorboard.SummaryWriter`. May be used from several threads.
///
/// Steps are integers of any type, or `None`.
///
/// # Errors
/// Every method returns an error if the file can't be written, and if a value can't be computed.
pub struct SummaryWriter {
    options: WriterOptions,
    shared: Arc<Shared>,
    flusher: Mutex<Option<JoinHandle<()>>>,
}

/// The state that the writer and the flushing thread share.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Signals that the writer is closed.
    closed: Condvar,
}

#[derive(Default)]
struct State {
    /// The open files by their folders.
    files: BTreeMap<PathBuf, EventFile>,
    /// The time of events, unless it is that of their call.
    walltime: Option<f64>,
    /// The configuration of TensorBoard's projector: the list of embeddings.
    projector: String,
    /// The number of times that the writer was closed.
    closings: u64,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SummaryWriter {
    /// A writer to a new file in a folder, `runs/DATE_HOST` if that is empty; [`WriterOptions`] take the rest.
    ///
    /// ```no_run
    /// use kiln_tensorboard::{SummaryWriter, WriterOptions};
    /// let writer = SummaryWriter::new("runs/first")?;
    /// let resumed = SummaryWriter::new(WriterOptions::new("runs/first").purge_step(1200))?;
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the file can't be made.
    #[track_caller]
    pub fn new(options: impl Into<WriterOptions>) -> Result<SummaryWriter> {
        let mut options = options.into();
        if options.log_dir.as_os_str().is_empty() {
            options.log_dir =
                Path::new("runs").join(format!("{}_{}{}", date(), host(), options.comment));
        }
        let writer = SummaryWriter {
            options,
            shared: Arc::default(),
            flusher: Mutex::default(),
        };
        writer.with_file("SummaryWriter::new", &writer.options.log_dir, |_, _| Ok(()))?;
        Ok(writer)
    }

    /// The folder that it writes to.
    pub fn log_dir(&self) -> &Path {
        &self.options.log_dir
    }

    /// PyTorch's name of [`SummaryWriter::log_dir`].
    pub fn get_logdir(&self) -> &Path {
        self.log_dir()
    }

    /// Sets the time of the events that follow, in seconds since 1970: PyTorch's `walltime`. `None` is the time of
    /// each call.
    pub fn set_walltime(&self, seconds: impl Into<Option<f64>>) {
        self.shared.state().walltime = seconds.into();
    }

    /// Adds a scalar: a number, or a tensor of one element.
    ///
    /// # Errors
    /// As all methods.
    #[track_caller]
    pub fn add_scalar<'a>(
        &self,
        tag: &str,
        scalar_value: impl Into<Other<'a>>,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        self.add_scalar_with(tag, scalar_value, global_step, ScalarStyle::new())
    }

    /// [`SummaryWriter::add_scalar`] in another style.
    ///
    /// # Errors
    /// As all methods.
    #[track_caller]
    pub fn add_scalar_with<'a>(
        &self,
        tag: &str,
        scalar_value: impl Into<Other<'a>>,
        global_step: impl Into<MaybeInt>,
        style: ScalarStyle,
    ) -> Result<()> {
        let (op, value) = ("add_scalar", number(scalar_value.into())?);
        let tensor = match (style.double_precision, style.new_style) {
            (false, false) => {
                let value = ValueContent::SimpleValue(value as f32);
                return self.add_value(op, tag, global_step, value, None);
            }
            (true, _) => TensorProto {
                dtype: DOUBLE,
                double_val: vec![value],
                ..TensorProto::default()
            },
            (false, true) => TensorProto {
                dtype: FLOAT,
                float_val: vec![value as f32],
                ..TensorProto::default()
            },
        };
        let (value, plugin) = (ValueContent::Tensor(tensor), plugin("scalars", Vec::new()));
        self.add_value(op, tag, global_step, value, Some(plugin))
    }

    /// Adds scalars that one chart shows. Each has a file of its own, in the folder
    /// `LOG_DIR/MAIN_TAG_TAG`.
    ///
    /// # Errors
    /// As all methods.
    #[track_caller]
    pub fn add_scalars<'a, T: AsRef<str>, V: Into<Other<'a>>>(
        &self,
        main_tag: &str,
        tag_scalar_dict: impl IntoIterator<Item = (T, V)>,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        let step = global_step.into();
        for (tag, value) in tag_scalar_dict {
            let value = ValueContent::SimpleValue(number(value.into())? as f32);
            let folder = format!("{}_{}", main_tag.replace('/', "_"), tag.as_ref());
            let summary = summary(main_tag, value, None);
            let folder = self.options.log_dir.join(folder);
            self.add_event("add_scalars", &folder, step, What::Summary(summary))?;
        }
        Ok(())
    }

    /// Adds the health report of a training step, each figure as a scalar such as `gradient/fc.weight`.
    ///
    /// # Errors
    /// As all methods.
    #[track_caller]
    pub fn add_health(
        &self,
        report: &HealthReport,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        let step = global_step.into();
        for (tag, value) in report.scalars() {
            self.add_scalar(&tag, value, step)?;
        }
        Ok(())
    }

    /// Adds a histogram of the elements of a tensor, in TensorBoard's bins.
    ///
    /// # Errors
    /// As all methods, or if there is no element, or none lies in a bin, as where all are NaN.
    #[track_caller]
    pub fn add_histogram(
        &self,
        tag: &str,
        values: impl AsTensor,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        self.add_histogram_with(tag, values, global_step, Histogram::new())
    }

    /// [`SummaryWriter::add_histogram`] in other bins.
    ///
    /// # Errors
    /// As [`SummaryWriter::add_histogram`], or if the bins are wrong.
    #[track_caller]
    pub fn add_histogram_with(
        &self,
        tag: &str,
        values: impl AsTensor,
        global_step: impl Into<MaybeInt>,
        options: Histogram,
    ) -> Result<()> {
        let values = floats(&values.as_tensor())?;
        let (op, histogram) = ("add_histogram", histogram(&values, &options));
        let value = ValueContent::Histo(or_invalid(op, histogram)?);
        self.add_value(op, tag, global_step, value, None)
    }

    /// Adds a histogram that has already been counted.
    ///
    /// # Errors
    /// As all methods, or if there are not as many limits as counts.
    #[track_caller]
    pub fn add_histogram_raw(
        &self,
        tag: &str,
        histogram: RawHistogram,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        let op = "add_histogram_raw";
        let value = ValueContent::Histo(or_invalid(op, histogram.message())?);
        self.add_value(op, tag, global_step, value, None)
    }

    /// Adds an image `[c, h, w]` of 1, 3 or 4 channels: u8 from 0 to 255, or other numbers from 0 to 1.
    ///
    /// # Errors
    /// As all methods, or if the shape does not fit.
    #[track_caller]
    pub fn add_image(
        &self,
        tag: &str,
        img_tensor: impl AsTensor,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        self.add_image_with(tag, img_tensor, global_step, "CHW")
    }

    /// [`SummaryWriter::add_image`] with other dims, such as `HWC` or `HW`.
    ///
    /// # Errors
    /// As [`SummaryWriter::add_image`], or if the letters are not those of the tensor's dims.
    #[track_caller]
    pub fn add_image_with(
        &self,
        tag: &str,
        img_tensor: impl AsTensor,
        global_step: impl Into<MaybeInt>,
        dataformats: &str,
    ) -> Result<()> {
        let pixels = Pixels::of_tensor(&img_tensor.as_tensor(), dataformats, "add_image")?;
        self.add_pixels("add_image", tag, &pixels, global_step)
    }

    /// Adds images `[n, c, h, w]` as one image, eight in a row.
    ///
    /// # Errors
    /// As [`SummaryWriter::add_image`].
    #[track_caller]
    pub fn add_images(
        &self,
        tag: &str,
        img_tensor: impl AsTensor,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        self.add_images_with(tag, img_tensor, global_step, "NCHW")
    }

    /// [`SummaryWriter::add_images`] with other dims, such as `NHWC`.
    ///
    /// # Errors
    /// As [`SummaryWriter::add_image_with`].
    #[track_caller]
    pub fn add_images_with(
        &self,
        tag: &str,
        img_tensor: impl AsTensor,
        global_step: impl Into<MaybeInt>,
        dataformats: &str,
    ) -> Result<()> {
        let pixels = Pixels::of_tensor(&img_tensor.as_tensor(), dataformats, "add_images")?;
        self.add_pixels("add_images", tag, &pixels, global_step)
    }

    /// Adds a drawn figure, without its transparency.
    ///
    /// # Errors
    /// As all methods, or if there are not four bytes per pixel.
    #[track_caller]
    pub fn add_figure(
        &self,
        tag: &str,
        figure: Figure<'_>,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        let pixels = or_invalid("add_figure", figure.pixels())?;
        self.add_pixels("add_figure", tag, &pixels, global_step)
    }

    #[track_caller]
    fn add_pixels(
        &self,
        op: &'static str,
        tag: &str,
        pixels: &Pixels,
        step: impl Into<MaybeInt>,
    ) -> Result<()> {
        let image = or_invalid(op, image::message(pixels))?;
        self.add_value(op, tag, step, ValueContent::Image(image), None)
    }

    /// Adds a text in Markdown, in which two spaces at the end of a line make a line break.
    ///
    /// # Errors
    /// As all methods.
    #[track_caller]
    pub fn add_text(
        &self,
        tag: &str,
        text_string: &str,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        let tensor = TensorProto {
            dtype: STRING,
            tensor_shape: Some(shape(&[1])),
            string_val: vec![text_string.as_bytes().to_vec()],
            ..TensorProto::default()
        };
        let tag = format!("{tag}/text_summary");
        let (value, plugin) = (ValueContent::Tensor(tensor), plugin("text", Vec::new()));
        self.add_value("add_text", &tag, global_step, value, Some(plugin))
    }

    /// Adds a profile: its times, the wait for data and the number of compilations as scalars; the table of kernels and
    /// the reasons of compilations as texts. The trace is a file `*.pt.trace.json` in the folder, named as PyTorch's
    /// `tensorboard_trace_handler` names it, for the profile plugin and Perfetto.
    ///
    /// # Errors
    /// As all methods.
    #[track_caller]
    pub fn add_profile(
        &self,
        tag: &str,
        profile: &Profile,
        global_step: impl Into<MaybeInt>,
    ) -> Result<()> {
        let step = global_step.into();
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        for (name, value) in [
            ("wall_ms", milliseconds(profile.wall_time())),
            ("kernels_ms", milliseconds(profile.total_time())),
            ("data_wait_ms", milliseconds(profile.wait_time())),
            ("compilations", profile.compilations().len() as f64),
        ] {
            self.add_scalar(&format!("{tag}/{name}"), value, step)?;
        }
        let table = profile.key_averages().table(30);
        self.add_text(&format!("{tag}/kernels"), &format!("```\n{table}```"), step)?;
        let reasons = profile.compilations().iter();
        let reasons: Vec<String> = reasons
            .map(|c| format!("* `{}`: {}", c.loc, c.reason))
            .collect();
        if !reasons.is_empty() {
            self.add_text(&format!("{tag}/compiled"), &reasons.join("\n"), step)?;
        }
        let name = format!("{}_{}.{}", host(), std::process::id(), (now() * 1e9) as u64);
        let path = self.options.log_dir.join(name + ".pt.trace.json");
        profile.export_chrome_trace(path)
    }

    /// Writes the waiting events.
    ///
    /// # Errors
    /// As all methods.
    #[track_caller]
    pub fn flush(&self) -> Result<()> {
        let mut state = self.shared.state();
        let flushed: Vec<_> = state.files.values_mut().map(EventFile::flush).collect();
        let flushed: io::Result<()> = flushed.into_iter().collect();
        io_result("flush", flushed)
    }

    /// Writes the waiting events, and closes the files. Later events go to new ones.
    ///
    /// # Errors
    /// As all methods.
    #[track_caller]
    pub fn close(&self) -> Result<()> {
        let flushed = self.flush();
        let thread = {
            let mut state = self.shared.state();
            state.files.clear();
            state.closings += 1;
            self.shared.closed.notify_all();
            lock(&self.flusher).take()
        };
        // The thread ends once it sees that the writer is closed.
        thread.map(JoinHandle::join);
        flushed
    }

    /// Adds one value.
    #[track_caller]
    pub(crate) fn add_value(
        &self,
        op: &'static str,
        tag: &str,
        step: impl Into<MaybeInt>,
        value: ValueContent,
        plugin: Option<PluginData>,
    ) -> Result<()> {
        let content = What::Summary(summary(tag, value, plugin));
        self.add_event(op, &self.options.log_dir, step.into(), content)
    }

    /// Adds an event to the file in a folder.
    #[track_caller]
    pub(crate) fn add_event(
        &self,
        op: &'static str,
        folder: &Path,
        step: MaybeInt,
        content: What,
    ) -> Result<()> {
        let step = step.0.unwrap_or(0);
        self.with_file(op, folder, |file, walltime| {
            file.add(walltime.unwrap_or_else(now), step, content)
        })
    }

    /// Calls `f` with the configuration of the projector.
    pub(crate) fn projector<R>(&self, f: impl FnOnce(&mut String) -> R) -> R {
        f(&mut self.shared.state().projector)
    }

    /// Calls `f` with the open file in a folder, which is created if there is none.
    #[track_caller]
    fn with_file(
        &self,
        op: &'static str,
        folder: &Path,
        f: impl FnOnce(&mut EventFile, Option<f64>) -> io::Result<()>,
    ) -> Result<()> {
        let mut state = self.shared.state();
        let state = &mut *state;
        let mut open = || -> io::Result<()> {
            if !state.files.contains_key(folder) {
                let options = &self.options;
                let mut file =
                    EventFile::create(folder, &options.filename_suffix, options.max_queue)?;
                if let Some(step) = options.purge_step.0
                    && folder == options.log_dir
                {
                    file.purge(step)?;
                }
                state.files.insert(folder.into(), file);
            }
            Ok(())
        };
        io_result(op, open())?;
        let mut flusher = lock(&self.flusher);
        if flusher.is_none() {
            let interval = Duration::from_secs(self.options.flush_secs);
            *flusher = Some(spawn_flusher(self.shared.clone(), state.closings, interval));
        }
        drop(flusher);
        let added = state
            .files
            .get_mut(folder)
            .map_or(Ok(()), |file| f(file, state.walltime));
        io_result(op, added)
    }
}

impl Drop for SummaryWriter {
    fn drop(&mut self) {
        // Errors are lost here; `close` returns them.
        let _ = self.close();
    }
}

/// Spawns the thread that writes waiting events at intervals, until the writer is next closed.
fn spawn_flusher(shared: Arc<Shared>, closings: u64, interval: Duration) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut state = shared.state();
        while state.closings == closings {
            let waited = shared.closed.wait_timeout(state, interval);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state
                .files
                .values_mut()
                .for_each(EventFile::flush_deferring_error);
        }
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the result, or the error of a file. Not a closure, which would not know the user's line.
#[track_caller]
pub(crate) fn io_result<T>(op: &str, result: io::Result<T>) -> Result<T> {
    match result {
        Ok(value) => Ok(value),
        Err(e) => Err(Error::at_caller(ErrorKind::Io, op, e.to_string())),
    }
}

/// Returns the result, or the error of invalid arguments.
#[track_caller]
pub(crate) fn or_invalid<T>(op: &str, result: Result<T, String>) -> Result<T> {
    match result {
        Ok(value) => Ok(value),
        Err(message) => Err(Error::invalid(op, message)),
    }
}

/// TensorFlow's numbers of dtypes.
pub(crate) const FLOAT: i32 = 1;
const DOUBLE: i32 = 2;
pub(crate) const STRING: i32 = 7;

pub(crate) fn plugin(name: &str, content: Vec<u8>) -> PluginData {
    PluginData {
        plugin_name: name.into(),
        content,
    }
}

pub(crate) fn shape(sizes: &[i64]) -> TensorShapeProto {
    let dim = sizes.iter().map(|n| Dim { size: *n });
    TensorShapeProto { dim: dim.collect() }
}

/// A summary of one value.
pub(crate) fn summary(tag: &str, value: ValueContent, plugin: Option<PluginData>) -> Summary {
    let metadata = plugin.map(|plugin| SummaryMetadata {
        plugin_data: Some(plugin),
    });
    let value = Value {
        tag: tag.into(),
        metadata,
        value: Some(value),
    };
    Summary { value: vec![value] }
}

#[track_caller]
fn number(value: Other<'_>) -> Result<f64> {
    match value {
        Other::Number(n) => Ok(n.as_f64()),
        Other::Tensor(t) => t.to_dtype(DType::F64).item(),
    }
}

/// The elements of a tensor in row-major order.
#[track_caller]
pub(crate) fn floats(t: &Tensor) -> Result<Vec<f64>> {
    t.detach().to_dtype(DType::F64).to_vec()
}

/// The date and time in UTC as PyTorch writes them, such as `Nov29_04-10-11`.
fn date() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since.unwrap_or_default().as_secs();
    let (day, second) = (seconds / 86400, seconds % 86400);
    let (month, day) = month_and_day(day as i64);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{}{day:02}_{h:02}-{m:02}-{s:02}", MONTHS[month])
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The month, from 0, and the day, from 1, of a day since 1970 (Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms").
fn month_and_day(day: i64) -> (usize, i64) {
    // Years begin in March, so that leap days are their last.
    let day_of_era = (day + 719_468).rem_euclid(146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    (
        ((month + 2) % 12) as usize,
        day_of_year - (153 * month + 2) / 5 + 1,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_their_dates() {
        // `date -u -d @SECONDS`
        let dates = [0, 58, 59, 789, 11016, 20786, 47540].map(month_and_day);
        let wanted = [(0, 1), (1, 28), (2, 1), (1, 29), (1, 29), (10, 29), (1, 28)];
        assert_eq!(dates, wanted);
        assert!(date().starts_with(MONTHS[month_and_day(now() as i64 / 86400).0]));
    }
}
