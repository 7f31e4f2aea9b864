//! placeholder
use super::plot::PlotError;
use crate::result::ResultFile;
/// x
pub fn html(_results: &[ResultFile]) -> Result<String, PlotError> {
    Ok(String::new())
}
