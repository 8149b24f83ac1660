// Package tensorfile reads and writes ranges of the tensors in a safetensors
// file, so that each of many processes touches its own bytes alone.
//
// A safetensors file is an 8-byte little-endian length, a JSON object of that
// many bytes which gives each tensor's dtype, shape and place, and the tensors'
// bytes, row-major and little-endian, without gap or overlap.
//
// Reading: Open checks the whole header before it believes any number in it,
// and refuses a bad file with the tensor's name and the reason. File.ReadAt
// then reads any range of a tensor. What Open holds in memory is bounded by a
// constant, not by the file.
//
// Writing, by the ranks of one job:
//
//	every rank  header, tensors, size, err := Encode(specs, metadata)
//	rank 0      temp, err := CreateTemp(path, header, size)     then tells temp to all
//	every rank  w, err := OpenForWrite(temp, tensors)
//	            w.WriteAt(tensor, bytes, off) ...; w.Sync(); w.Close()
//	            barrier
//	rank 0      Commit(temp, path), or Abort(temp) if any rank failed
//
// so that path appears complete or not at all.
//
// The package does not know what a tensor means, does not convert, transpose or
// allocate tensor data, does not talk to other processes, and does not log.
package tensorfile
