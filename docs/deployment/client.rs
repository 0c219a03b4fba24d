// The C interface from Rust: a package's names, and one call on zeros.
//
//     rustc client.rs -L PACKAGE/native -l program -C link-arg=-Wl,-rpath,PACKAGE/native -o client
//     ./client PACKAGE SIZE...
//
// takes a program of one float32 input of these sizes.
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    dtype: i32,
    ndim: i32,
    sizes: *const i64,
    strides: *const i64,
}

const FLOAT32: i32 = 6;

extern "C" {
    fn quintet_model_load(path: *const c_char, error: *mut *mut c_char) -> *mut c_void;
    fn quintet_model_free(model: *mut c_void);
    fn quintet_model_input_name(model: *const c_void, at: i64) -> *const c_char;
    fn quintet_model_output_name(model: *const c_void, at: i64) -> *const c_char;
    fn quintet_model_run(
        model: *mut c_void, inputs: *const Tensor, count: i64, result: *mut *mut c_void, error: *mut *mut c_char,
    ) -> c_int;
    fn quintet_result_get(result: *const c_void, at: i64) -> *const Tensor;
    fn quintet_result_free(result: *mut c_void);
    fn quintet_error_free(error: *mut c_char);
}

struct Model(*mut c_void);
struct Outcome(*mut c_void);

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { quintet_model_free(self.0) }
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        unsafe { quintet_result_free(self.0) }
    }
}

fn taken(error: *mut c_char) -> String {
    if error.is_null() {
        return "no reason given".into();
    }
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    unsafe { quintet_error_free(error) };
    text
}

impl Model {
    fn load(path: &str) -> Result<Model, String> {
        let path = CString::new(path).map_err(|e| e.to_string())?;
        let mut error = null_mut();
        let model = unsafe { quintet_model_load(path.as_ptr(), &mut error) };
        if model.is_null() { Err(taken(error)) } else { Ok(Model(model)) }
    }

    fn run(&self, values: &mut [f32], sizes: &[i64]) -> Result<Outcome, String> {
        let data = values.as_mut_ptr() as *mut c_void;
        let x = Tensor { data, dtype: FLOAT32, ndim: sizes.len() as i32, sizes: sizes.as_ptr(), strides: null() };
        let (mut result, mut error) = (null_mut(), null_mut());
        match unsafe { quintet_model_run(self.0, &x, 1, &mut result, &mut error) } {
            0 => Ok(Outcome(result)),
            _ => Err(taken(error)),
        }
    }
}

fn name(text: *const c_char) -> Option<String> {
    if text.is_null() { None } else { Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()) }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let sizes: Vec<i64> = args[2..].iter().map(|size| size.parse().expect("a size")).collect();
    let mut values = vec![0f32; sizes.iter().product::<i64>() as usize];
    let outcome = Model::load(&args[1]).and_then(|model| {
        let mut at = 0;
        while let Some(text) = name(unsafe { quintet_model_input_name(model.0, at) }) {
            println!("takes {text}");
            at += 1;
        }
        let result = model.run(&mut values, &sizes)?;
        at = 0;
        while let Some(text) = name(unsafe { quintet_model_output_name(model.0, at) }) {
            let y = unsafe { &*quintet_result_get(result.0, at) };
            let shape = unsafe { std::slice::from_raw_parts(y.sizes, y.ndim as usize) };
            println!("gives {text}{shape:?}");
            at += 1;
        }
        Ok(())
    });
    if let Err(text) = outcome {
        eprintln!("{text}");
        std::process::exit(1);
    }
}
