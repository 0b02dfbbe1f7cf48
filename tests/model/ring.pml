/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rings of a session and their two sleeps, for spin: rules R1 to R5 of shm/README.md.
 *
 * In: this model, one client, one daemon. Out: no lost entry, no stale one, no lost wake-up, over every
 * interleaving and every order of memory that the rules leave open. Next: run.sh.
 *
 * Memory is not sequentially consistent here. Each side has a store buffer of a few entries, from which
 * its stores reach memory in any order, except that a release store leaves after all that stand before
 * it, and stores to one word keep their order; a seq_cst fence, and a swap, first empty the buffer.
 * Loads look into the own buffer first. This is weaker than x86 (whose buffer is a queue) and as weak as
 * what the code's C11 orders ask of stores; loads are in program order, which the code has by its
 * acquires. The entry is two words: `data` (the rest of it) and `seq`.
 *
 * -DBREAK=n takes one order away: the check must then fail (run.sh).
 *   1: seq stored relaxed, not release (R1)        2: client's fence before need_wakeup (R4)
 *   3: leader's fence before its last look (R4)    4: client's fence before its last look (R5)
 *   5: daemon's fence before cq_waiting (R5)       6: cq_event read after cq_waiting is set (R5)
 */
#ifndef BREAK
#define BREAK 0
#endif

#define N	2  /* entries of each ring */
#define JOBS	3  /* more than a ring holds */
#define BUF	4  /* stores under way on each side */

/* Words of shared memory. */
#define SQ_SEQ(i)  (i)		/* 0 .. N-1 */
#define SQ_DATA(i) (N + (i))
#define CQ_SEQ(i)  (2 * N + (i))
#define CQ_DATA(i) (3 * N + (i))
#define SQ_HEAD	   (4 * N)
#define CQ_HEAD	   (4 * N + 1)
#define NEED	   (4 * N + 2)
#define WAITING	   (4 * N + 3)
#define EVENT	   (4 * N + 4)
#define WORDS	   (4 * N + 5)

#define CLIENT 0
#define DAEMON 1

byte mem[WORDS];
/* Store buffers: word, value, release; the oldest first. */
byte bw[2 * BUF], bv[2 * BUF];
bool br[2 * BUF];
byte bn[2];

byte doorbell;	 /* bytes in the wake socket, towards the leader: 0 or 1 is enough (a full socket holds one) */
bool sleeping[2]; /* in the futex, or in epoll */

inline store(who, w, v, rel)
{
	atomic {
		bn[who] < BUF ->
		bw[who * BUF + bn[who]] = w;
		bv[who * BUF + bn[who]] = v;
		br[who * BUF + bn[who]] = rel;
		bn[who]++
	}
}

/* The youngest own store, else memory. */
inline load(who, w, ret)
{
	atomic {
		ret = mem[w];
		k = 0;
		do
		:: k < bn[who] -> if :: bw[who * BUF + k] == (w) -> ret = bv[who * BUF + k] :: else fi; k++
		:: else -> break
		od;
		k = 0
	}
}

inline fence(who)
{
	bn[who] == 0
}

/* What leaves a buffer, and when: any store that no older one to its word, and, if it is a release, no
 * older one at all, stands before. A release also orders what was stored before it by the other rules. */
proctype memory(byte who)
{
	byte i, j;
	bool may;

end:
	do
	:: atomic {
		bn[who] > 0 ->
		/* choose one */
		i = 0;
		do
		:: i + 1 < bn[who] -> i++
		:: break
		od;
		may = true;
		if
		:: br[who * BUF + i] && i > 0 -> may = false
		:: else
		fi;
		j = 0;
		do
		:: j < i -> if :: bw[who * BUF + j] == bw[who * BUF + i] -> may = false :: else fi; j++
		:: else -> break
		od;
		if
		:: may ->
			mem[bw[who * BUF + i]] = bv[who * BUF + i];
			j = i;
			do
			:: j + 1 < bn[who] ->
				bw[who * BUF + j] = bw[who * BUF + j + 1];
				bv[who * BUF + j] = bv[who * BUF + j + 1];
				br[who * BUF + j] = br[who * BUF + j + 1];
				j++
			:: else -> break
			od;
			bn[who]--;
			bw[who * BUF + bn[who]] = 0;
			bv[who * BUF + bn[who]] = 0;
			br[who * BUF + bn[who]] = false
		:: else
		fi;
		i = 0;
		j = 0;
		may = false
	}
	od
}

proctype client()
{
	byte put = 0, got = 0, x, e, k, head;

	do
	:: got == JOBS -> break
	:: put < JOBS && put - got < N ->
		/* R2: the slot is free once its completion is here, which came after sq_head grew. */
		store(CLIENT, SQ_DATA(put % N), put + 1, false);
#if BREAK == 1
		store(CLIENT, SQ_SEQ(put % N), put + 1, false);
#else
		store(CLIENT, SQ_SEQ(put % N), put + 1, true);
#endif
		put++;
#if BREAK != 2
		fence(CLIENT);
#endif
		load(CLIENT, NEED, x);
		if
		:: x -> doorbell = 1
		:: else
		fi
	:: got < put ->
		load(CLIENT, CQ_SEQ(got % N), x);
		if
		:: x == got + 1 ->
			load(CLIENT, CQ_DATA(got % N), x);
			assert(x == got + 1);
			got++;
			store(CLIENT, CQ_HEAD, got, true)
		:: else -> /* sleep (R5) */
#if BREAK != 6
			load(CLIENT, EVENT, e);
#endif
			store(CLIENT, WAITING, 1, false);
#if BREAK != 4
			fence(CLIENT);
#endif
#if BREAK == 6
			load(CLIENT, EVENT, e);
#endif
			load(CLIENT, CQ_SEQ(got % N), x);
			if
			:: x == got + 1
			:: else ->
				atomic { /* the kernel compares and queues under its lock */
					if
					:: mem[EVENT] == e -> sleeping[CLIENT] = true
					:: else
					fi
				}
				!sleeping[CLIENT]
			fi;
			store(CLIENT, WAITING, 0, false)
		fi
	od
}

proctype leader()
{
	byte taken = 0, done = 0, x, k, head;

	do
	:: done == JOBS -> break
	:: done < JOBS ->
		load(DAEMON, CQ_HEAD, head);
		assert(head <= done);
		load(DAEMON, SQ_SEQ(taken % N), x);
		if
		:: x == taken + 1 && taken - head < N -> /* R3 */
			load(DAEMON, SQ_DATA(taken % N), x);
			assert(x == taken + 1);
			taken++;
			store(DAEMON, SQ_HEAD, taken, true);
			/* answer at once */
			store(DAEMON, CQ_DATA(done % N), done + 1, false);
			store(DAEMON, CQ_SEQ(done % N), done + 1, true);
			done++;
			/* reply_wake */
#if BREAK != 5
			fence(DAEMON);
#endif
			load(DAEMON, WAITING, x);
			if
			:: x ->
				fence(DAEMON); /* the swap is a full one */
				atomic { x = mem[WAITING]; mem[WAITING] = 0 };
				store(DAEMON, EVENT, done, true); /* grows with each batch */
				fence(DAEMON); /* a system call */
				if
				:: x -> sleeping[CLIENT] = false
				:: else
				fi
			:: else
			fi
		:: else -> /* park (R4) */
			store(DAEMON, NEED, 1, false);
#if BREAK != 3
			fence(DAEMON);
#endif
			load(DAEMON, SQ_SEQ(taken % N), x);
			load(DAEMON, CQ_HEAD, head);
			if
			:: x == taken + 1
			:: else -> doorbell > 0; doorbell = 0
			fi;
			store(DAEMON, NEED, 0, false)
		fi
	od
}

init
{
	atomic {
		run memory(CLIENT);
		run memory(DAEMON);
		run client();
		run leader()
	}
}
