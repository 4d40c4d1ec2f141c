// SPDX-License-Identifier: Apache-2.0
// An intrusive list: membership costs no allocation and ends with the member. A class that wants to be in a
// List<T> derives from ListNode<T>; it can be in one such list at a time, and leaves it when destroyed.
#pragma once

#include <cstddef>

#include "base/assert.h"

namespace cistern {

template <class T>
class List;

template <class T>
class ListNode {
 public:
  ListNode() = default;
  ~ListNode() { Unlink(); }
  ListNode(const ListNode&) = delete;
  ListNode& operator=(const ListNode&) = delete;

  bool linked() const { return next_ != nullptr; }
  void Unlink() {
    if (!linked()) return;
    prev_->next_ = next_;
    next_->prev_ = prev_;
    next_ = prev_ = nullptr;
  }

 private:
  friend class List<T>;
  ListNode* next_ = nullptr;
  ListNode* prev_ = nullptr;
};

// First in, first out. Must be empty when destroyed: who is in it would keep a dangling link.
template <class T>
class List {
 public:
  List() { head_.next_ = head_.prev_ = &head_; }
  ~List() {
    CISTERN_ASSERT(empty());
    head_.next_ = head_.prev_ = nullptr;
  }
  List(const List&) = delete;
  List& operator=(const List&) = delete;

  bool empty() const { return head_.next_ == &head_; }
  // At least so many; looks at no more.
  bool Holds(std::size_t count) const {
    const ListNode<T>* node = &head_;
    for (; count > 0 && node->next_ != &head_; --count) node = node->next_;
    return count == 0;
  }
  T* front() { return empty() ? nullptr : static_cast<T*>(head_.next_); }

  void PushBack(T& item) {
    ListNode<T>& node = item;
    CISTERN_ASSERT(!node.linked());
    node.prev_ = head_.prev_;
    node.next_ = &head_;
    head_.prev_->next_ = &node;
    head_.prev_ = &node;
  }
  // Null when empty.
  T* PopFront() {
    T* item = front();
    if (item != nullptr) static_cast<ListNode<T>*>(item)->Unlink();
    return item;
  }

 private:
  ListNode<T> head_;
};

}  // namespace cistern
