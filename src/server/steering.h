// SPDX-License-Identifier: Apache-2.0
// The operations that steer the node for all its clients and concern no blocks: its devices, what is switched
// off, the size of its memory, its way out of service. Who may ask for them is asked before.
#pragma once

#include "base/task.h"
#include "io/loop.h"
#include "server/answer.h"
#include "server/engines.h"
#include "server/parts.h"
#include "server/session.h"
#include "wire/protocol.h"

namespace cistern::server {

class Steering final {
 public:
  // Borrows what the parts borrow, and the engines.
  Steering(const ServerParts& parts, Engines& engines) : parts_(parts), engines_(engines) {}

  // Each as Calls::Do has its calls.
  Task<Result<Answer>> ChangeDevice(Session& session, const wire::Submission& call);
  Task<Result<Answer>> Turn(Session& session, const wire::Submission& call);
  Task<Result<Answer>> Resize(const wire::Submission& call);
  Task<Result<Answer>> Drain(const wire::Submission& call);

  // For its tasks.
  Executor& executor() const { return parts_.loop.executor(); }

 private:
  const ServerParts parts_;
  Engines& engines_;
};

}  // namespace cistern::server
