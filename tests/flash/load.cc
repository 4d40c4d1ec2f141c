// SPDX-License-Identifier: Apache-2.0
#include "load.h"

#include <utility>

#include "base/random.h"

namespace cistern {

namespace {
bool GoesWithout(Code code) { return code == Code::kMiss || code == Code::kBusy || code == Code::kTooLate; }
}  // namespace

Load::Load(const RealNode& node, std::uint64_t first)
    : first_(first), thread_([this, store = node.Connect()]() mutable { Run(std::move(store)); }) {}

Load::~Load() {
  stop_ = true;
  thread_.join();
}

void Load::Await(std::uint64_t more) {
  const std::uint64_t until = puts_ + more;
  Until([&] { return puts_ >= until || !failure().empty(); });
}

std::string Load::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void Load::Fail(const std::string& what) {
  std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = what;
}

void Load::Run(Store store) {
  const Namespace ns = AttachTest(store);
  Random random(first_);
  for (std::uint64_t number = first_; !stop_; ++number) {
    const std::uint64_t in_chain = (number - first_) % kLoadChain;
    const Status status =
        PutBlock(store, ns, number, in_chain == 0 ? std::nullopt : std::optional(number - 1), kLoadBytes);
    if (status.ok()) {
      ++puts_;
    } else if (!GoesWithout(status.code())) {
      Fail("put: " + status.ToString());
    }
    Read(store, ns, first_ + random.Below(number - first_ + 1));
  }
}

void Load::Read(Store& store, const Namespace& ns, std::uint64_t number) {
  const auto body = store.Get(ns, KeyOf(number));
  if (body) {
    ++hits_;
    wrong_ += *body != BodyOf(number, kLoadBytes);
  } else if (!GoesWithout(body.error().code())) {
    Fail("get: " + body.error().ToString());
  }
}

}  // namespace cistern
