//! The Python face of the replay kernels.

use pyo3::prelude::*;

/// Adds what this file has to the module.
pub fn register(_m: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
