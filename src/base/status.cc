// SPDX-License-Identifier: Apache-2.0
#include "cistern/status.h"

namespace cistern {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kMiss: return "miss";
    case Code::kBusy: return "busy";
    case Code::kTooLate: return "too_late";
    case Code::kLapsed: return "lapsed";
    case Code::kInvalid: return "invalid";
    case Code::kMismatch: return "mismatch";
    case Code::kDenied: return "denied";
    case Code::kGone: return "gone";
    case Code::kIoError: return "io_error";
    case Code::kUnavailable: return "unavailable";
  }
  return "unknown";
}

std::string Status::ToString() const {
  std::string text(CodeName(code_));
  if (message_) text.append(": ").append(*message_);
  return text;
}

}  // namespace cistern
