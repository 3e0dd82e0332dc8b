//! Results as files, as hyperfine writes them: JSON with every run, CSV and Markdown with one line an arm.
//!
//! A file is replaced as a whole, so that whoever reads it meanwhile sees the last round or this one, never half.

use crate::error::CompareError;
use muster_model::results::{Arm, Comparison, Range, ResultFile};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Where to write what.
#[derive(Debug, Clone, Default)]
pub struct Exports {
    /// JSON, readable by `muster report`.
    pub json: Option<PathBuf>,
    /// Comma-separated values.
    pub csv: Option<PathBuf>,
    /// A Markdown table.
    pub markdown: Option<PathBuf>,
}

impl Exports {
    /// Writes every file that was asked for.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, comparison: &Comparison) -> Result<(), CompareError> {
        let write = |path: &Option<PathBuf>, format: &dyn Fn(&Comparison) -> Result<String, CompareError>| {
            path.as_deref().map_or(Ok(()), |path| replace(path, &format(comparison)?))
        };
        write(&self.json, &json)?;
        write(&self.csv, &csv)?;
        write(&self.markdown, &|comparison| Ok(markdown(comparison)))
    }

    /// Makes sure before the first run that every file can be written.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn check(&self) -> Result<(), CompareError> {
        for path in [&self.json, &self.csv, &self.markdown].into_iter().flatten() {
            directory_of(path).and_then(tempfile::NamedTempFile::new_in).map_err(|error| {
                CompareError::bad_input(
                    "export",
                    format!("`{}` ({error})", path.display()),
                    "a file that can be written",
                )
            })?;
        }
        Ok(())
    }
}

/// The result file as JSON.
///
/// # Errors
/// Never in practice: a comparison holds only what JSON can express.
pub fn json(comparison: &Comparison) -> Result<String, CompareError> {
    let text = serde_json::to_string_pretty(&ResultFile::Compare(comparison.clone()));
    text.map(|text| text + "\n").map_err(|error| CompareError::system("JSON")(error.into()))
}

/// One line an arm, ratios with their interval.
///
/// # Errors
/// As [`json`].
pub fn csv(comparison: &Comparison) -> Result<String, CompareError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let failed = |error: csv::Error| CompareError::system("CSV")(error.into());
    let header = "arm,runs,metric,median_speed,spread,speed_ratio,speed_ratio_low,speed_ratio_high,cpu_ratio,\
                  cpu_ratio_low,cpu_ratio_high,machine_cpu_ratio,machine_cpu_ratio_low,machine_cpu_ratio_high,\
                  median_wall_s,median_cpu_s";
    writer.write_record(header.split(',')).map_err(failed)?;
    for arm in &comparison.arms {
        let mut record = vec![
            arm.name.clone(),
            arm.runs.len().to_string(),
            comparison.metric.clone(),
            arm.median_speed.to_string(),
            arm.spread.to_string(),
        ];
        for ratio in [arm.speed_ratio, arm.cpu_ratio, arm.machine_cpu_ratio] {
            let ends = ratio.map_or([String::new(), String::new(), String::new()], |Range { low, value, high }| {
                [value.to_string(), low.to_string(), high.to_string()]
            });
            record.extend(ends);
        }
        record.extend([median_seconds(arm, |run| run.wall_ns), median_seconds(arm, |run| run.cpu_ns)]);
        writer.write_record(&record).map_err(failed)?;
    }
    let bytes = writer.into_inner().map_err(|error| CompareError::system("CSV")(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn median_seconds(arm: &Arm, of: fn(&muster_model::results::Run) -> u64) -> String {
    let seconds: Vec<f64> = arm.runs.iter().map(|run| of(run) as f64 / 1e9).collect();
    muster_stats::median(&seconds).map_or(String::new(), |median| median.to_string())
}

/// A Markdown table, the verdicts and notes below.
pub fn markdown(comparison: &Comparison) -> String {
    let escape = |text: &str| text.replace('|', "\\|");
    let mut text = format!("`{}`\n\n", comparison.command);
    let _ = writeln!(
        text,
        "| Arm | Runs | {}/s (median ± half IQR) | Speed (95 % CI) | CPU per work (95 % CI) | Machine's CPU per work (95 % CI) |",
        escape(&comparison.metric)
    );
    text.push_str("|:---|---:|---:|---:|---:|---:|\n");
    for arm in &comparison.arms {
        let ratio = |range: Option<Range>| {
            range.map_or("1".to_owned(), |r| format!("{:.2} ({:.2} to {:.2})", r.value, r.low, r.high))
        };
        let _ = writeln!(
            text,
            "| `{}` | {} | {:.4} ± {:.4} | {} | {} | {} |",
            escape(&arm.name),
            arm.runs.len(),
            arm.median_speed,
            arm.spread,
            ratio(arm.speed_ratio),
            ratio(arm.cpu_ratio),
            ratio(arm.machine_cpu_ratio)
        );
    }
    let verdicts = comparison.arms.iter().filter_map(|arm| arm.verdict.as_ref());
    for line in verdicts.chain(&comparison.notes) {
        let _ = write!(text, "\n- {line}");
    }
    text.push('\n');
    text
}

fn replace(path: &Path, text: &str) -> Result<(), CompareError> {
    let write = || -> std::io::Result<()> {
        // A device or a pipe is written to; only a file may be replaced.
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            return std::fs::write(path, text);
        }
        let mut file = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(directory_of(path)?)?;
        file.write_all(text.as_bytes())?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(CompareError::system(path.display().to_string()))
}

/// The directory a file lies in, made if it is missing.
fn directory_of(path: &Path) -> std::io::Result<&Path> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    Ok(directory)
}
