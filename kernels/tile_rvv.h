/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Template: the inner loops of one kind at one LMUL of the f32 accumulators. No include guard.
 *
 * In:   macros, undefined again at the end:
 *         NAME              of this kind and LMUL, for function names
 *         RAW, LOAD(p, vl)  a row (or a row of words that hold OPS rows) as it stands in memory
 *         RAW_BYTES         of one lane
 *         OP0(raw, vl)      a row as FMA wants it
 *       with defaults
 *         LM                of the accumulators: 4 (or 2)
 *         X                 type of the scalars: float
 *         OPERAND           type of OP0: the accumulators'
 *         FMA(acc, x, operand, vl)  vfmacc
 *         OPS, OP1(raw, vl) rows in one RAW: 1 (or 2), and the second
 *       and if full registers have loops of their own
 *         WIDE, GETS, GET(wide, j)  eight registers, the RAWs in them, the j-th
 *         AHEAD             WIDEs to load before the first FMA: 2, or 1 if OP0 needs registers
 *         HALVES(p, q)      RAW of two half rows (LM 4 only)
 * Out:  NAME_qk_rows_R() and so on, for R = 1..4 queries.
 * Next: the including file puts them into a struct rvv_kind.
 *
 * Vector types fit in no array: a0..a3 are the accumulators. Accumulator j belongs to query j; with
 * two chunks (or strips) side by side to query j / 2 and chunk j % 2, so that few queries still
 * make independent chains. Everything is inlined for each R; unused accumulators fold away.
 */

#ifndef LM
#define LM 4
#endif
#ifndef X
#define X float
#endif
#ifndef OPS
#define OPS 1
#endif
#ifndef OPERAND
#define OPERAND VF
#endif
#ifndef FMA
#define FMA(acc, x, k, vl)	F32(vfmacc_vf)(acc, x, k, vl)
#define FMA_KEEP(acc, x, k, vl) RVV_PASTE(F32(vfmacc_vf), _tu)(acc, x, k, vl)
#endif
#ifndef FMA_KEEP
#define FMA_KEEP FMA
#endif

#define VF	RVV_PASTE3(vfloat32m, LM, _t)
#define F32(op) RVV_PASTE3(__riscv_##op, _f32m, LM)
#define FN(f)	RVV_PASTE3(NAME, _, f)
#define ACCS	VF *a0, VF *a1, VF *a2, VF *a3

/*
 * Operand k, row i from where x stands, into all accumulators; into those of chunk 0 or 1. Four
 * accumulators and an operand of its own leave no register free: an undisturbed tail keeps clang
 * from moving a sum to another one.
 */
#define ADD(acc, r, i, k) *acc = R == RVV_PASS ? FMA_KEEP(*acc, x[r][i], k, vl) : FMA(*acc, x[r][i], k, vl)
#define MAC(i, k)                         \
	do {                              \
		ADD(a0, 0, i, k);         \
		if (R > 1)                \
			ADD(a1, 1, i, k); \
		if (R > 2)                \
			ADD(a2, 2, i, k); \
		if (R > 3)                \
			ADD(a3, 3, i, k); \
	} while (0)
#define MAC_OF(c, d, i, k)               \
	do {                             \
		ADD(c, 0, i, k);         \
		if (R > 1)               \
			ADD(d, 1, i, k); \
	} while (0)

/* The same with the OPS rows of one RAW. */
#if OPS == 2
#define EACH_OP(mac, i, raw)                 \
	do {                                 \
		RAW raw_ = raw;              \
		OPERAND k0_ = OP0(raw_, vl); \
		mac(i, k0_);                 \
		OPERAND k1_ = OP1(raw_, vl); \
		mac(i + 1, k1_);             \
	} while (0)
#else
#define EACH_OP(mac, i, raw)                \
	do {                                \
		OPERAND k0_ = OP0(raw, vl); \
		mac(i, k0_);                \
	} while (0)
#endif
#define MAC_0(i, k) MAC_OF(a0, a2, i, k)
#define MAC_1(i, k) MAC_OF(a1, a3, i, k)
/* The same with the GETS RAWs of one WIDE. */
#define GET_OPS(mac, i, w, j) EACH_OP(mac, i + (j) * OPS, GET(w, j))
#if GETS == 2
#define EACH_GET(mac, i, w)    \
	GET_OPS(mac, i, w, 0); \
	GET_OPS(mac, i, w, 1)
#elif GETS == 4
#define EACH_GET(mac, i, w)    \
	GET_OPS(mac, i, w, 0); \
	GET_OPS(mac, i, w, 1); \
	GET_OPS(mac, i, w, 2); \
	GET_OPS(mac, i, w, 3)
#else
#define EACH_GET(mac, i, w)    \
	GET_OPS(mac, i, w, 0); \
	GET_OPS(mac, i, w, 1); \
	GET_OPS(mac, i, w, 2); \
	GET_OPS(mac, i, w, 3); \
	GET_OPS(mac, i, w, 4); \
	GET_OPS(mac, i, w, 5); \
	GET_OPS(mac, i, w, 6); \
	GET_OPS(mac, i, w, 7)
#endif

RVV_INLINE void FN(skip)(unsigned R, const X **x, size_t n)
{
	for (unsigned r = 0; r < R; r++)
		x[r] += n;
}

/* n rows from *row on, a load each. */
RVV_INLINE void FN(rows)(unsigned R, ACCS, const X **x, const char *row, size_t n, size_t vl, size_t stride)
{
#pragma clang loop unroll_count(8 / OPS)
	for (size_t i = 0; i < n; i += OPS) {
		EACH_OP(MAC, 0, LOAD(row, vl));
		row += stride;
		FN(skip)(R, x, OPS);
	}
}

#ifdef WIDE
/*
 * Loads of eight registers. With AHEAD 2 both loads of an iteration are issued before the first
 * FMA, so that a core without renaming overlaps them; the asm keeps clang from sinking the second.
 */
RVV_INLINE void FN(whole)(unsigned R, ACCS, const X **x, const char *row, size_t n, size_t vl)
{
	const size_t step = __riscv_vlenb() * 8;

#pragma clang loop unroll(disable)
	for (; n >= AHEAD * GETS * OPS; n -= AHEAD * GETS * OPS) {
		WIDE w0 = *(const WIDE *)row;
#if AHEAD == 2
		WIDE w1 = *(const WIDE *)(row + step);
		__asm__("" : "+vr"(w0), "+vr"(w1));
#endif
		EACH_GET(MAC, 0, w0);
#if AHEAD == 2
		EACH_GET(MAC, GETS * OPS, w1);
#endif
		row += AHEAD * step;
		FN(skip)(R, x, AHEAD * GETS * OPS);
	}
	FN(rows)(R, a0, a1, a2, a3, x, row, n, vl, vl * RAW_BYTES);
}

#define EACH_PAIR(j)                                   \
	do {                                           \
		EACH_OP(MAC_0, (j) * OPS, GET(w0, j)); \
		EACH_OP(MAC_1, (j) * OPS, GET(w1, j)); \
	} while (0)

RVV_INLINE void FN(two)(unsigned R, ACCS, const X **x, const char *row0, const char *row1, size_t n, size_t vl)
{
	const size_t step = __riscv_vlenb() * 8;

	for (; n >= GETS * OPS; n -= GETS * OPS) {
		WIDE w0 = *(const WIDE *)row0;
		WIDE w1 = *(const WIDE *)row1;

		EACH_PAIR(0);
		EACH_PAIR(1);
#if GETS > 2
		EACH_PAIR(2);
		EACH_PAIR(3);
#endif
		row0 += step;
		row1 += step;
		FN(skip)(R, x, GETS * OPS);
	}
	for (; n > 0; n -= OPS) {
		EACH_OP(MAC_0, 0, LOAD(row0, vl));
		EACH_OP(MAC_1, 0, LOAD(row1, vl));
		row0 += vl * RAW_BYTES;
		row1 += vl * RAW_BYTES;
		FN(skip)(R, x, OPS);
	}
}
#endif

#ifdef HALVES
RVV_INLINE void FN(halves)(unsigned R, ACCS, const X **x, const char *row0, const char *row1, size_t n, size_t vl)
{
#pragma clang loop unroll_count(8 / OPS)
	for (size_t i = 0; i < n; i += OPS) {
		EACH_OP(MAC, 0, HALVES(row0, row1));
		row0 += vl / 2 * RAW_BYTES;
		row1 += vl / 2 * RAW_BYTES;
		FN(skip)(R, x, OPS);
	}
}
#endif

/* ---- What surrounds a loop ---- */

RVV_INLINE void FN(run)(enum rvv_loop loop, unsigned R, ACCS, const X **x, const char *row0, const char *row1,
			size_t n, size_t vl, size_t stride)
{
	(void)row1;
	if (loop == RVV_ROWS)
		FN(rows)(R, a0, a1, a2, a3, x, row0, n, vl, stride);
#ifdef WIDE
	if (loop == RVV_WHOLE)
		FN(whole)(R, a0, a1, a2, a3, x, row0, n, vl);
	if (loop == RVV_TWO)
		FN(two)(R, a0, a1, a2, a3, x, row0, row1, n, vl);
#endif
#ifdef HALVES
	if (loop == RVV_HALVES)
		FN(halves)(R, a0, a1, a2, a3, x, row0, row1, n, vl);
#endif
}

/* Is accumulator j in use? Whose, and where does it stand? */
RVV_INLINE bool FN(used)(enum rvv_loop loop, unsigned R, unsigned j)
{
	return (loop == RVV_TWO ? j / 2 : j) < R;
}

RVV_INLINE float *FN(place)(enum rvv_loop loop, unsigned j, const struct rvv_pass *pass, size_t at, size_t vl)
{
	return loop == RVV_TWO ? pass->y[j / 2] + at + j % 2 * vl : pass->y[j] + at;
}

RVV_INLINE VF FN(load)(enum rvv_loop loop, unsigned j, const struct rvv_pass *pass, size_t at, size_t vl)
{
	VF a = F32(vle32_v)(FN(place)(loop, j, pass, at, vl), vl);
	float alpha = pass->alpha[loop == RVV_TWO ? j / 2 : j];

	return alpha != 1.0f ? F32(vfmul_vf)(a, alpha, vl) : a;
}

RVV_INLINE void FN(qk)(enum rvv_loop loop, unsigned R, const struct rvv_pass *pass, const char *const *k, size_t at,
		       size_t n, size_t lanes)
{
	const X *x[RVV_PASS] = {pass->x[0], pass->x[1], pass->x[2], pass->x[3]};
	size_t vl = loop == RVV_HALVES ? 2 * lanes : lanes;
	VF a0 = F32(vfmv_v_f)(0.0f, vl), a1 = a0, a2 = a0, a3 = a0;
	const char *k1 = loop == RVV_TWO || loop == RVV_HALVES ? k[1] : NULL;

	FN(run)(loop, R, &a0, &a1, &a2, &a3, x, k[0], k1, n, vl, vl * RAW_BYTES);
#define STORE(j)                  \
	if (FN(used)(loop, R, j)) \
		F32(vse32_v)(FN(place)(loop, j, pass, at, vl), a##j, vl);
	STORE(0)
	STORE(1)
	STORE(2)
	STORE(3)
#undef STORE
}

RVV_INLINE void FN(pv)(enum rvv_loop loop, unsigned R, const struct rvv_pass *pass, const struct rvv_values *v,
		       size_t off, size_t at, size_t vl)
{
	const X *x[RVV_PASS] = {pass->x[0], pass->x[1], pass->x[2], pass->x[3]};
	VF a0 = FN(load)(loop, 0, pass, at, vl), a1 = a0, a2 = a0, a3 = a0;

#define LOAD_ACC(j)               \
	if (FN(used)(loop, R, j)) \
		a##j = FN(load)(loop, j, pass, at, vl);
	LOAD_ACC(1)
	LOAD_ACC(2)
	LOAD_ACC(3)
#undef LOAD_ACC
	for (size_t b = 0; b < v->num_blocks; b++) {
		const char *row = v->blocks[b] + off;

		FN(run)(loop, R, &a0, &a1, &a2, &a3, x, row, row + v->strip_bytes, v->block_size, vl,
			v->lanes * RAW_BYTES);
	}
	/* Adding 0 turns -0 into +0 (rvv.h). */
#define STORE(j)                  \
	if (FN(used)(loop, R, j)) \
		F32(vse32_v)(FN(place)(loop, j, pass, at, vl), F32(vfadd_vf)(a##j, 0.0f, vl), vl);
	STORE(0)
	STORE(1)
	STORE(2)
	STORE(3)
#undef STORE
}

#define QK(loop, how, R)                                                                                       \
	static void FN(qk_##how##_##R)(const struct rvv_pass *pass, const char *const *k, size_t at, size_t n, \
				       size_t lanes)                                                           \
	{                                                                                                      \
		FN(qk)(loop, R, pass, k, at, n, lanes);                                                        \
	}
#define PV(loop, how, R)                                                                                    \
	static void FN(pv_##how##_##R)(const struct rvv_pass *pass, const struct rvv_values *v, size_t off, \
				       size_t at, size_t vl)                                                \
	{                                                                                                   \
		FN(pv)(loop, R, pass, v, off, at, vl);                                                      \
	}
#define EACH_R(M, loop, how) M(loop, how, 1) M(loop, how, 2) M(loop, how, 3) M(loop, how, 4)

#if LM == 4
EACH_R(QK, RVV_ROWS, rows)
EACH_R(PV, RVV_ROWS, rows)
#endif
#ifdef WIDE
EACH_R(PV, RVV_WHOLE, whole)
#endif
#if defined(WIDE) && LM == 4
EACH_R(QK, RVV_WHOLE, whole)
EACH_R(QK, RVV_HALVES, halves)
QK(RVV_TWO, two, 1)
PV(RVV_TWO, two, 1)
#if AHEAD == 2
QK(RVV_TWO, two, 2)
PV(RVV_TWO, two, 2)
#endif
#endif

#undef NAME
#undef LM
#undef X
#undef RAW
#undef LOAD
#undef RAW_BYTES
#undef OPS
#undef OPERAND
#undef OP0
#undef OP1
#undef FMA
#undef WIDE
#undef GETS
#undef GET
#undef AHEAD
#undef HALVES
#undef VF
#undef F32
#undef FN
#undef ACCS
#undef FMA_KEEP
#undef ADD
#undef MAC
#undef MAC_OF
#undef MAC_0
#undef MAC_1
#undef EACH_OP
#undef GET_OPS
#undef EACH_GET
#undef EACH_PAIR
#undef QK
#undef PV
#undef EACH_R
