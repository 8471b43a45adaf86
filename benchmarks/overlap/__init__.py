"""Does compiled tensor-parallel code overlap communication with compute as far as its graph allows?"""
