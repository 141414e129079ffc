//! Who may drain a partition. The protocol and its states are in `README.md` beside this file.

mod table;

pub(crate) use table::OwnerWord;
