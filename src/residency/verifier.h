// SPDX-License-Identifier: Apache-2.0
// Verification of a resident record's body against its seal: at its first use after a start, when a reader
// reports it, and in the background.
#pragma once

#include <cstdint>

#include "base/task.h"
#include "residency/context.h"
#include "residency/evictor.h"
#include "residency/residents.h"

namespace cistern::residency {

class Verifier final {
 public:
  Verifier(const StoreContext& context, Residents& residents, Evictor& evictor)
      : context_(context), residents_(residents), evictor_(evictor) {}
  Verifier(const Verifier&) = delete;
  Verifier& operator=(const Verifier&) = delete;

  Executor& executor() { return context_.executor; }

  // True if a referenced record is sound and was in memory when the check ended; the caller resumes later
  // and asks Catalog::Lives. A damaged record leaves memory, and is lost if that was its last copy.
  Task<bool> Verify(catalog::RecordHandle handle);

 private:
  const StoreContext context_;
  Residents& residents_;
  Evictor& evictor_;
};

}  // namespace cistern::residency
