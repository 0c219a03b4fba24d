"""What is kept on disk between processes: records and libraries that only this user can have written."""
