// SPDX-License-Identifier: Apache-2.0
// A stretch of C++ without Python's lock.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace cistern::python {

// Lets go of the lock, and takes it again at its end. Once the interpreter ends, Python lets no daemon thread
// take it any more: it ends the thread by unwinding its stack, which C++ frames that must not throw turn into
// an abort. Such a thread stops here instead, until the process is gone a moment later.
class WithoutGil final {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      for (;;) pause();
    }
  }

 private:
  PyThreadState* const state_;
};

}  // namespace cistern::python
