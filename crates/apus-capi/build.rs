//! Gives the C library its soname. Programs look for `libapus.so.0`, whatever cargo calls the file.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libapus.so.0");
}
