// SPDX-License-Identifier: Apache-2.0
// etcd as its clients see it (API version 3): keys under one revision, transactions, leases and watches. Two
// stand behind it: a real cluster by its JSON gateway (etcd/gateway.h) and a simulated one
// (etcd/simulated.h). It lies behind no block's way: members, names, drops and ends of conversations are what
// is kept there.
//
// All of it belongs to the thread of one executor. Keys and values are bytes. Every call has a deadline:
// kTooLate: no answer by it, and a transaction, a grant or a revocation may have taken effect all the same;
// kGone: no endpoint can be reached; kDenied: it asks for a login, or refuses this one; kBusy: it refuses
// more (its disk quota is full, its queue is too long); kMismatch: its version is older than kOldestVersion;
// kInvalid: a request that no etcd takes, which is the caller's defect. Messages name the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task.h"
#include "cistern/status.h"

namespace cistern::etcd {

struct Limits {
  static constexpr std::size_t kOperations = 128;         // of a transaction: etcd's own default
  static constexpr std::size_t kRequestBytes = 1u << 20;  // below etcd's 1.5 MiB
  static constexpr std::size_t kAnswerBytes = 64u << 20;  // what is read of one answer
  static constexpr std::size_t kUnreadEvents = 1u << 16;  // of a watch that its owner does not read
};

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

// The keys from `key` on and before `end`; `end` empty: this key alone.
struct KeyRange {
  std::string key, end;
  // All keys that begin with `prefix`; of an empty one, all keys.
  static KeyRange Prefix(std::string prefix);
};

struct RangeRequest {
  KeyRange keys;
  std::int64_t revision = 0;  // as of it; 0: now. kLapsed: it is compacted
  std::int64_t limit = 0;     // at most so many, in order of keys; 0: all that there are
  bool count_only = false;
};

struct RangeAnswer {
  Header header;
  std::vector<KeyValue> keys;  // in order of keys
  std::int64_t count = 0;      // how many there are, whatever the limit
  bool more = false;           // than `limit`
};

// A condition on one key. Of a key that is absent, both revisions are 0.
struct Compare {
  enum class What : std::uint8_t { kCreateRevision, kModRevision, kValue, kLease };
  enum class Is : std::uint8_t { kEqual, kNotEqual, kLess, kGreater };
  std::string key;
  What what = What::kModRevision;
  Is is = Is::kEqual;
  std::int64_t number = 0;  // of all but kValue
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

// Atomic: `then` where every condition holds, else `otherwise`. A key is put at most once in it.
struct Transaction {
  std::vector<Compare> conditions;
  std::vector<Operation> then, otherwise;
};

struct TransactionAnswer {
  Header header;  // of what it changed, its own revision
  bool succeeded = false;
  std::vector<RangeAnswer> ranges;  // of its kRange operations, in order
};

struct LeaseAnswer {
  Header header;
  std::int64_t id = 0;
  std::int64_t ttl_s = 0;  // from when etcd answered; 0 of a renewal: the lease has ended
};

struct WatchEvent {
  enum class Kind : std::uint8_t { kPut, kDelete };
  Kind kind = Kind::kPut;
  KeyValue key;  // of a delete: key and mod_revision
};

// Changes of a range, ordered, without gaps and each once, from the revision that was asked for. One
// Next may be under way at a time. Destroying it ends it.
class Watch {
 public:
  virtual ~Watch() = default;
  Watch() = default;
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // The changes of one or more whole revisions, none of which is split over two answers. kTooLate: nothing
  // came by the deadline, which says nothing of whether etcd lives: ask it by Range. kLapsed: what comes next
  // is compacted; compact_revision() says up to where. Any other error: the watch has ended, and a new one
  // may begin at next_revision().
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

  // A lease that ends `ttl_s` seconds after the last renewal, with the keys put under it.
  virtual Task<Result<LeaseAnswer>> Grant(std::int64_t ttl_s, Instant deadline) = 0;
  virtual Task<Result<LeaseAnswer>> KeepAlive(std::int64_t lease, Instant deadline) = 0;
  virtual Task<Status> Revoke(std::int64_t lease, Instant deadline) = 0;

  // Changes from `revision` on, which is at least 1. Begins to watch; what is wrong is said by Next.
  virtual std::unique_ptr<Watch> WatchFrom(KeyRange keys, std::int64_t revision) = 0;

  // What happened before `revision` is forgotten: for who knows that etcd is the cell's alone.
  virtual Task<Status> Compact(std::int64_t revision, Instant deadline) = 0;
};

}  // namespace cistern::etcd
