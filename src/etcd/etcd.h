// SPDX-License-Identifier: Apache-2.0
// etcd as its clients see it (API version 3): keys under one revision, transactions, leases and watches. Two
// stand behind it: a real cluster by its JSON gateway (etcd/gateway.h) and a simulated one
// (etcd/simulated.h). It lies behind no block's way: members, names, drops and ends of conversations are what
// is kept there.
//
// All of it belongs to the thread of one executor. Keys and values are bytes. Every call has a deadline, and
// one of these ends it:
//   kTooLate   no answer came by it, or none will come because the connection broke or etcd gave up. A change
//              may have taken effect all the same, or take effect later
//   kGone      no endpoint can be reached; nothing has changed
//   kBusy      etcd refuses more: its disk quota is full, its queue is too long. The first change for which
//              the quota has no room takes effect all the same
//   kDenied    it asks for a login, or refuses this one; nothing has changed
//   kMismatch  its version is older than kOldestVersion, or it has not come to the revision that was asked
//              for, as a restored one has not; nothing has changed
//   kLapsed    the revision that was asked for is compacted, or a lease under which a key was to be put has
//              ended; nothing has changed
//   kInvalid   a request that no etcd takes, or one whose answer is longer than kAnswerBytes: the caller's
//              defect; nothing has changed
//   kIoError   what answers is no etcd; nothing is known of a change
// Messages name the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/task.h"
#include "cistern/status.h"

namespace cistern::etcd {

struct Limits {
  static constexpr std::size_t kOperations = 128;         // of a transaction: etcd's own default
  static constexpr std::size_t kRequestBytes = 1u << 20;  // below etcd's 1.5 MiB
  static constexpr std::size_t kAnswerBytes = 64u << 20;  // what is read of one answer
  static constexpr std::size_t kUnreadBytes = 64u << 20;  // of a watch that its owner does not read
  static constexpr std::size_t kEventBytes = 100;         // of them, what a change is besides key and value
  static constexpr std::int64_t kLeaseTtlS = 9'000'000'000;
};

// 3.4 has the gateway under /v3 and watches in fragments.
inline constexpr std::string_view kOldestVersion = "3.4.0";

// What each answer says of who gave it. A lower revision than one seen before, or another cluster, is a
// restored or another etcd.
struct Header {
  std::uint64_t cluster_id = 0;
  std::int64_t revision = 0;
};

struct KeyValue {
  std::string key, value;
  std::int64_t create_revision = 0, mod_revision = 0;
  std::int64_t lease = 0;  // 0: none
};

// The keys from `key` on and before `end`; `end` empty: this key alone; one zero byte: to the last key. No
// etcd has a key without a byte.
struct KeyRange {
  std::string key, end;
  // All keys that begin with `prefix`; of an empty one, all keys.
  static KeyRange Prefix(std::string prefix);
  bool Contains(std::string_view other) const;
};

struct RangeRequest {
  KeyRange keys;
  std::int64_t revision = 0;  // as of it; 0: now
  std::int64_t limit = 0;     // at most so many, in order of keys; 0: all that there are
};

struct RangeAnswer {
  Header header;
  std::vector<KeyValue> keys;  // in order of keys
  bool more = false;           // than `limit` there are
};

// What one key has to have. Of a key that is absent, both revisions are 0, and no condition on its value
// holds.
struct Compare {
  enum class What : std::uint8_t { kCreateRevision, kModRevision, kValue };
  std::string key;
  What what = What::kModRevision;
  std::int64_t number = 0;  // of a revision
  std::string value;
};

struct Operation {
  enum class Kind : std::uint8_t { kPut, kDelete, kRange };
  Kind kind = Kind::kPut;
  KeyRange keys;  // of a put its key alone
  std::string value;
  std::int64_t lease = 0;
  std::int64_t limit = 0;  // of a range
};

// Atomic: `then` where every condition holds, else `otherwise`, in order; a range sees what stands before it.
// In each of the two a key is put at most once, and not put and deleted. What it changes has one revision; a
// delete of what is not there changes nothing.
struct Transaction {
  std::vector<Compare> conditions;
  std::vector<Operation> then, otherwise;
};

struct TransactionAnswer {
  Header header;  // of what it changed, its own revision
  bool succeeded = false;
  std::vector<RangeAnswer> ranges;  // of its kRange operations, in order, with the same header
};

struct LeaseAnswer {
  Header header;
  std::int64_t id = 0;
  std::int64_t ttl_s =
      0;  // from when etcd answered, at least what was asked for; 0 of a renewal: it has ended
};

struct WatchEvent {
  enum class Kind : std::uint8_t { kPut, kDelete };
  Kind kind = Kind::kPut;
  KeyValue key;  // of a delete: key and mod_revision
};

// Changes of a range, ordered, without gaps and each once, from the revision that was asked for. One
// Next may be under way at a time, and one that is dropped takes along what it had: the watch is then of no
// more use. Destroying it, while no Next is under way, ends it.
class Watch {
 public:
  virtual ~Watch() = default;
  Watch() = default;
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // The changes of one or more whole revisions, none of which is split over two answers. kTooLate: nothing
  // came by the deadline, which says nothing of whether etcd lives: ask it by Range. Any other error comes
  // after all that was there before it and ends the watch: kLapsed: what comes next is compacted;
  // compact_revision() says up to where. kBusy: about kUnreadBytes were unread. Else
  // (kGone: it was cancelled, or the connection broke) a new one may begin at next_revision(), once a Range
  // has shown that etcd was not restored: one that has not come to next_revision() lets the watch wait for
  // it.
  virtual Task<Result<std::vector<WatchEvent>>> Next(Instant deadline) = 0;
  // Behind all that Next has given.
  virtual std::int64_t next_revision() const = 0;
  virtual std::int64_t compact_revision() const = 0;
};

class Etcd {
 public:
  virtual ~Etcd() = default;
  Etcd() = default;
  Etcd(const Etcd&) = delete;
  Etcd& operator=(const Etcd&) = delete;

  virtual Executor& executor() = 0;

  virtual Task<Result<RangeAnswer>> Range(RangeRequest request, Instant deadline) = 0;
  virtual Task<Result<TransactionAnswer>> Commit(Transaction transaction, Instant deadline) = 0;

  // A lease that ends about `ttl_s` (1 to kLeaseTtlS) seconds after the last renewal, not before, with the
  // keys put under it. A restarted etcd begins to count again.
  virtual Task<Result<LeaseAnswer>> Grant(std::int64_t ttl_s, Instant deadline) = 0;
  virtual Task<Result<LeaseAnswer>> KeepAlive(std::int64_t lease, Instant deadline) = 0;
  // Ends it now; ok as well when it has ended before.
  virtual Task<Status> Revoke(std::int64_t lease, Instant deadline) = 0;

  // Changes from `revision` on, which is at least 1. Begins to watch; what is wrong is said by Next.
  virtual std::unique_ptr<Watch> WatchFrom(KeyRange keys, std::int64_t revision) = 0;

  // Makes etcd forget changes before `revision`, and perhaps deletes at it. Only for a cell that has etcd
  // alone and whose watches are all past that revision. Ok as well where it was forgotten before.
  virtual Task<Status> Compact(std::int64_t revision, Instant deadline) = 0;
};

// kInvalid where no etcd takes it; both bodies ask this before they send it.
Status Validate(const RangeRequest& request);
Status Validate(const Transaction& transaction);
Status ValidateLeaseTtl(std::int64_t ttl_s);

}  // namespace cistern::etcd
